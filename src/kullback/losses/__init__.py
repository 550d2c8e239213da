"""Losses: `kl_div`, distillation, policies, regularizers. `kullback.functional` and `kullback.nn` show them."""
