"""One column: its type, its counts, and their bins."""
