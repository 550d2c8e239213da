"""Estimates of divergences from random draws, on request only."""
