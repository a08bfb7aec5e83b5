"""Orchestration traces: the forest of sampled tokens, the rows made from it, and the checks on both."""
