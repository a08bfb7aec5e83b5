"""The kinds of checks, one module each. They are named in `harnessgym/registry.py`."""
