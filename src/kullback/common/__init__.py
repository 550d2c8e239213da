"""Plumbing that any room may use: files, inputs, numbers, displays. It knows no divergence."""
