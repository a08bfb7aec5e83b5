"""Differential tests: a solution and the oracle solution run on the same inputs, and where they differ is
reported.
"""
