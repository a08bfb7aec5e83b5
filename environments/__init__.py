"""Environments: task sets and their graders, one folder each. Named in `harnessgym/registry.py`."""
