"""Harness: the default agent of `harnessgym/Harness-v0`."""
