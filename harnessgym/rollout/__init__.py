"""Rollouts: planned, run through four stages, recorded."""
