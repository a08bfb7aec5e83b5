"""Proximal policies other than the one that sampled and the one that the step starts from."""
