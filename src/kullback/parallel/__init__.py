"""Logits whose classes are sharded over the ranks of a process group: each rank has some classes of every position.

- `collectives.py` contains the collectives, and checks that all ranks make the same call.
- `shards.py` determines the classes of each rank, and exchanges logits so that student and teacher have the same
  classes on each rank.
- `rows.py` computes divergences of rows, by the rules of `combine.py`.
- `selected.py` computes the log-probabilities of a few classes.
- `workers.py` divides the rows of a comparison among processes.

The losses of `kullback.functional` use this package for a process group or DTensors.
"""
