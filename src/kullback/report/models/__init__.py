"""The reports of comparisons of language models."""
