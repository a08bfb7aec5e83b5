"""Small configurations whose runs take milliseconds."""

import pytest

from harnessgym.config import validate
from harnessgym.simulation.settings import SimulationConfig

SMALL = {
    "engines": {"workers": 3, "max_batch": 8},
    "work": {
        "turns": "lognormal:3:0.5:8",
        "tokens": "lognormal:60:1.0:400",
        "environments": 16,
        "graders": 4,
    },
    "trainer": {"steps": 8, "warmup": 0, "groups_per_step": 4, "group_size": 2, "step_s": 5},
    "updates": {"transfer_s": 2, "install_s": 0.5, "drain_s": 1, "lease_ttl_s": 10},
}


@pytest.fixture(scope="session")
def make_config():
    """`make_config(trainer={"steps": 3})`: the small configuration with changes by section."""

    def make(**sections):
        raw = {name: dict(values) for name, values in SMALL.items()}
        for section, values in sections.items():
            if isinstance(values, dict):
                raw.setdefault(section, {}).update(values)
            else:
                raw[section] = values
        return validate(SimulationConfig, raw, "the test")

    return make
