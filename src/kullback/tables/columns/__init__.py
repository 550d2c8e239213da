"""One column of a table: the type, the counts, and the bins of the column."""
