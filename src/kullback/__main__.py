"""The command as a module: ``python -m kullback``, and several of it by ``torchrun --nproc-per-node N -m kullback``."""

from kullback.cli import main

main(may_have_workers=True)
