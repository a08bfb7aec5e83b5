"""The variants of training that are compared: changes to one configuration, on the same draws.

- `sync`: η = 0. A batch is sampled completely, then trained, then every engine gets the new version.
- `one-step`: η = 1 with a barrier. Batch k+1 is sampled while batch k is trained (verl, slime `train_async`).
- `eta-N`: η = N. Admission as in AReaL (arXiv 2505.24298), batches in order of submission, rolling updates.
- `periodic`: strictly on-policy. Versions change between batches; the trainer works on parts of a batch as
  they complete (Periodic Asynchrony).
- `recycle`: two batches are launched and sampling stops when one is complete. Unfinished rollouts continue
  first after the update, across versions (APRIL).
- `over-launch`: the same at η = 4 with `trainer.over_launch`. The trainer has its own machines, so engines do
  not stop.
"""

import re
from typing import Any

from harnessgym.config import nearest, validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.trainer import PERIODIC
from harnessgym.simulation.settings import SimulationConfig

_RECYCLE_STALENESS = 64
"""APRIL does not bound staleness. This only keeps a rollout from continuing for ever."""

_PERIODIC = {
    "max_staleness": PERIODIC["max_staleness"],
    "consumption": PERIODIC["when_stale"],
    "micro_batches": 8,
}
_ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "sync": {"trainer": {"max_staleness": 0}, "work": {"sampling": "batch"}, "updates": {"mode": "between"}},
    "one-step": {
        "trainer": {"max_staleness": 1},
        "work": {"sampling": "batch"},
        "updates": {"mode": "between"},
    },
    "periodic": {"trainer": _PERIODIC, "updates": {"mode": "between"}},
    "recycle": {
        "trainer": {
            "max_staleness": _RECYCLE_STALENESS,
            "over_launch": 2,
            "consumption": "drop",
            "alone": True,
        },
        "updates": {"mode": "global", "drain_s": 0},
    },
    "over-launch": {"trainer": {"max_staleness": 4, "over_launch": 2, "consumption": "drop"}},
}
_OWN = "as-given"


def names() -> list[str]:
    """Names of the variants. `eta-N` takes any number."""
    return [_OWN, *_ARMS, "eta-1", "eta-2", "eta-4", "eta-8"]


def arm(config: SimulationConfig, name: str) -> SimulationConfig:
    """A configuration changed to a variant. `as-given` changes nothing.

    Raises `ConfigError` for an unknown name.
    """
    if name == _OWN:
        return config
    eta = re.fullmatch(r"eta-(\d+)", name)
    if eta is None and name not in _ARMS:
        raise ConfigError(f"There is no arm {name!r}. {nearest(name, names())}")
    changes = {"trainer": {"max_staleness": int(eta[1])}} if eta else _ARMS[name]
    raw = config.model_dump()
    raw["name"] = name
    for section, values in changes.items():
        raw[section] |= values
    if not eta and raw["trainer"]["groups_per_step"] % raw["trainer"]["micro_batches"]:
        raw["trainer"]["micro_batches"] = raw["trainer"]["groups_per_step"]
    return validate(SimulationConfig, raw, f"arm {name}")
