"""Settings of the whole suite, and what is skipped where a machine lacks it."""

import os

import pytest
from hypothesis import settings

from harnessgym.sandboxes.bubblewrap import bubblewrap_available

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("harnessgym", deadline=None)  # a loaded machine is no counterexample
settings.load_profile("harnessgym")


def pytest_collection_modifyitems(items):
    """Without bubblewrap its tests are skipped, saying why; where `HARNESSGYM_REQUIRE` names it, they run and fail."""
    if "bubblewrap" in os.environ.get("HARNESSGYM_REQUIRE", "") or (problem := bubblewrap_available()) is None:
        return
    for item in items:
        if item.get_closest_marker("bubblewrap"):
            item.add_marker(pytest.mark.skip(reason=problem))
