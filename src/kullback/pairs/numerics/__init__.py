"""Functions of numbers and matrices that keep their digits."""
