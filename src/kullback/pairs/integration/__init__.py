"""Divergences by quadrature and summation."""
