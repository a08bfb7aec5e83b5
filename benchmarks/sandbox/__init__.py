"""Sandboxes: how fast they start and run, and a private Docker engine to measure on."""
