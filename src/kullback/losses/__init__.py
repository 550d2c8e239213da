"""Losses: `kl_div`, distillation, policies, regularizers. Public modules: `functional`, `nn`, `policy`."""
