"""KL from a classifier that tells the draws of P from those of Q."""
