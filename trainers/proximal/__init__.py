"""Proximal policies with weights of their own, other than the behaviour and the current policy."""
