"""A comparison of tables as a terminal table, JSON and a page."""
