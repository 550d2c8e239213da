"""Random and quasi-random draws of distributions."""
