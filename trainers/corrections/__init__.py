"""Corrections for tokens that an older policy (or another engine) sampled.

Pure functions from log(pi_old / mu) per token, float [N], to a weight per token, float [N]. A weight may be
zero, but a correction never removes a token: a masked token still counts in every denominator.
"""
