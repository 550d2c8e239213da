"""Reports of a fit: terminal, JSON, page, data frame and plots."""
