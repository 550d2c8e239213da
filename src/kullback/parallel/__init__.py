"""Classes sharded over the ranks of a process group: each rank has the logits of some classes of every position.

`ranks.py` holds the collectives and makes sure that all ranks ask for the same; `shards.py` says which classes a rank
has, and brings both sides to the same ones; `rows.py` computes divergences of rows, by the rules of `combine.py`;
`selected.py` finds the log-probabilities of a few classes. The losses of `kullback.functional` use it where they are
given a process group or DTensors.
"""
