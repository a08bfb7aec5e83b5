"""Advantage estimators: pure functions from the rewards of one group, float [G], to its advantages, float64 [G]."""
