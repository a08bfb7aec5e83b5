"""Which losses, proximal policies and corrections go together."""

from contextlib import suppress
from itertools import product

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.registry import names
from trainers.update_settings import UpdateSettings

WEIGHTS = {"icepop", "mis", "tis"}
ANY = WEIGHTS | {"", "geometric", "opsm"}
OTHER = ("recompute", "snapshot", "loglinear", "ewma")
"""Proximal policies that are neither the one that sampled nor the current one."""
ACCEPTED = {
    "cispo": {"behaviour": {"", "opsm"}} | dict.fromkeys(OTHER, ANY),
    "dapo": {"behaviour": {"", "opsm"}, "current": WEIGHTS} | dict.fromkeys(OTHER, ANY),
    "decoupled_ppo": dict.fromkeys(OTHER, WEIGHTS),
    "dppo_tv": {"behaviour": {"", "opsm"}},
    "gspo": {"behaviour": {"", "opsm"}} | dict.fromkeys(OTHER, ANY),
    "minpro": {"behaviour": {""}} | dict.fromkeys(OTHER, WEIGHTS | {""}),
    "ppo": {"behaviour": {"", "opsm"}, "current": WEIGHTS} | dict.fromkeys(OTHER, ANY),
    "reinforce": {"current": ANY},
}
"""Corrections, "" for none, by loss and proximal policy."""


def settings_of(loss, proximal, correction):
    by_name = {"name": "ewma", "window": 2, "reset_below": 0.0} if proximal == "ewma" else proximal
    given = {"loss": loss, "proximal": by_name, "corrections": [correction] if correction else [], "max_grad_norm": 1e9}
    return validate(UpdateSettings, given, "the test")


def test_what_goes_together_is_this_and_nothing_else():
    found = {loss: {} for loss in names("loss")}
    for loss, proximal, correction in product(names("loss"), ("behaviour", "current", *OTHER), ["", *names("correction")]):
        with suppress(ConfigError):
            settings_of(loss, proximal, correction)
            found[loss].setdefault(proximal, set()).add(correction)
    assert found == ACCEPTED
