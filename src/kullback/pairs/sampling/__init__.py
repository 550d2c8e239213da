"""Divergences from random draws, for those who ask for them."""
