"""Verifies a store: recomputes from its rows what they claim."""
