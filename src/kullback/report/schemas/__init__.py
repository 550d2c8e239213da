"""The JSON schemas of the results, and the functions that return their fields."""
