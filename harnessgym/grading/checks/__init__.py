"""The kinds of checks that a task's tests are made of, one module each. Named in `harnessgym/registry.py`."""
