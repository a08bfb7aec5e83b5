"""Gymnasium environments whose actions drive a harness: a whole rollout, or one completion at a time."""
