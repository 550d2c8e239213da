"""Estimates of KL between continuous distributions from nearest neighbors of draws."""
