"""Kinds of reference policies and teachers; `trainers.reference` is their contract."""
