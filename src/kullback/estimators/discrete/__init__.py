"""KL between categorical samples, from counts."""
