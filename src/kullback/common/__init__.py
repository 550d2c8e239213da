"""Helpers for files, inputs, numbers and displays, which any package may import. They contain no divergence."""
