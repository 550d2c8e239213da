"""Adapters for trainers, one module for each trainer. Only the module of a trainer imports the trainer's package.

`huggingface`, `trl` and `lightning` contain subclasses of trainers and need the trainers' packages. `torchtune`,
`nemo`, `modelopt` and `verl` contain losses with the signatures that these packages call, by position or from a
configuration file. These losses need only torch.
"""
