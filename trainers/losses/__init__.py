"""Policy losses: pure functions from per-token quantities, float [N], to a loss per token, float [N].

`normalisation.token_weights` turns per-token losses into one number; no loss divides by anything itself.
"""
