"""Classes sharded over the ranks of a process group: each rank has the logits of some classes of every position.

- `collectives.py` contains the collectives, and checks that all ranks make the same call.
- `shards.py` determines the classes of each rank, and brings both sides to the same classes.
- `rows.py` computes divergences of rows, by the rules of `combine.py`.
- `selected.py` computes the log-probabilities of a few classes.
- `workers.py` shares the rows of a comparison among processes.

The losses of `kullback.functional` use this package for a process group or DTensors.
"""
