"""KL between continuous samples, from nearest neighbors."""
