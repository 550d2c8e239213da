"""The JSON schemas of the results, and the exact numbers below their names."""
