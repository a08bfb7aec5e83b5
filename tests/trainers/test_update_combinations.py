"""Which losses, proximal policies and corrections go together; a step with each that do, whatever the
advantage is of.
"""

from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.registry import names
from tests.trainers.test_update import make_policy, make_rows
from trainers.optimizer import make_optimizer
from trainers.scoring import Scorer
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings
from trainers.world import ALONE

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
    given = {
        "loss": loss,
        "proximal": by_name,
        "corrections": [correction] if correction else [],
        "max_grad_norm": 1e9,
    }
    return validate(UpdateSettings, given, "the test")


def test_what_goes_together_is_this_and_nothing_else():
    found = {loss: {} for loss in names("loss")}
    for loss, proximal, correction in product(
        names("loss"), ("behaviour", "current", *OTHER), ["", *names("correction")]
    ):
        with suppress(ConfigError):
            settings_of(loss, proximal, correction)
            found[loss].setdefault(proximal, set()).add(correction)
    assert found == ACCEPTED


def gradient(rows, values, options, proximal=None):
    """The gradient of a step on the policy that sampled the rows; `options` say one version ago."""
    policy, ages = make_policy(), [row.mask for row in rows]
    policy_update(policy, make_optimizer(policy, options), rows, values, options, proximal, ages=ages)
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


@pytest.mark.parametrize("loss", names("loss"))
def test_on_policy_every_combination_takes_the_step_of_the_plain_policy_gradient(loss):
    """With one advantage for a rollout and with one for each of its calls."""
    drawn = make_rows(3, count=2)
    logprobs = Scorer(make_policy(), UpdateSettings(), ALONE).logprobs(drawn)
    rows = [
        replace(row, logprobs=np.where(row.mask, own, 0).astype(np.float32))
        for row, own in zip(drawn, logprobs, strict=True)
    ]
    by_call = [np.where(np.arange(len(row.ids)) < 6, 1.0, -0.5).astype(np.float32) for row in rows]
    for values in ([1.0, -0.5], by_call):
        expected = gradient(rows, values, settings_of("reinforce", "current", ""))
        assert float(expected.abs().max()) > 1e-3
        for proximal, corrections in ACCEPTED[loss].items():
            given = logprobs if proximal in ("recompute", "snapshot", "ewma") else None
            for correction in sorted(corrections):
                found = gradient(rows, values, settings_of(loss, proximal, correction), given)
                torch.testing.assert_close(
                    found, expected, rtol=1e-4, atol=1e-5, msg=f"{proximal}, {correction or 'none'}"
                )
