"""Estimates of divergences between distributions of categories, from counts of draws."""
