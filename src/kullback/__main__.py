"""The command as a module: ``python -m kullback``, or several workers: ``torchrun --nproc-per-node N -m kullback``."""

from kullback.cli import main

main(may_have_workers=True)
