"""Adapters for trainers, one module each. Only the module of a trainer imports the trainer's package.

`huggingface`, `trl` and `lightning` subclass trainers and need them; `nemo`, `modelopt` and `verl` have the signatures
that these packages call, by position or from a configuration file, and need nothing but torch.
"""
