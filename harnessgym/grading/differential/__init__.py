"""Differential tests: run a solution and the oracle solution on the same inputs and report differences."""
