"""KL from a classifier that separates draws of P from draws of Q."""
