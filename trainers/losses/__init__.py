"""Policy losses: pure functions from per-token quantities, float [N], to a loss per token, float [N].

No loss normalises itself; `normalisation.token_weights` gives the weights that turn per-token losses into one
number.
"""
