"""Adapters to the trainers that people use, one module each: the package that it is for is imported with it alone.

`huggingface`, `trl` and `lightning` subclass trainers and need them; `torchtune`, `nemo`, `modelopt` and `verl` have
the signatures that these packages call, by position or from a configuration file, and need nothing but torch.
"""
