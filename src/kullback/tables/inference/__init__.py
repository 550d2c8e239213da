"""Divergences, intervals and tests from the counts of two tables."""
