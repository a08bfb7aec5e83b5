"""Settings of the whole suite."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("harnessgym", deadline=None)  # a loaded machine is no counterexample
settings.load_profile("harnessgym")
