"""Losses: `kl_div`, distillation, policies, regularizers. Public names are in `kullback.functional`, `nn` and `policy`."""
