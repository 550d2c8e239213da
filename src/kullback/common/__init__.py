"""Helpers that any package may import: files, inputs, numbers, displays. It knows no divergence."""
