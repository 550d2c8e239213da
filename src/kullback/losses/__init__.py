"""Losses: `kl_div`, distillation, policies, regularizers. The public doors are `functional`, `nn` and `policy`."""
