"""A comparison of predictions as a terminal table, JSON and a page."""
