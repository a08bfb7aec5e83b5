"""What the store costs: see `__main__`."""
