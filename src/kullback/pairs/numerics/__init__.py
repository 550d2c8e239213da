"""Numerically accurate functions of numbers and matrices."""
