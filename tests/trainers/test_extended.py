"""A run that is lengthened trains what a run of that length would have trained, to the bit."""

from functools import partial

import pytest
import torch

from harnessgym.run_config.run import RunConfig
from harnessgym.store import TraceStore, runs
from harnessgym.supervisor import start_run
from harnessgym.traces.token_accounting import exclude_rest
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import make_run, record_groups, save_model
from trainers import checkpoint, grpo, ppo
from trainers.learner import TrainerSettings

STEPS = 4
AVERAGE = {"lr": 0.01, "proximal": "ewma", "corrections": [{"name": "icepop", "low": 0.01, "high": 100.0}]}
ESS = {"lr": 0.01, "loss": "gspo", "proximal": "snapshot", "lr_rule": "ess"}


def finish(folder):
    """What the supervisor does at the end of a run."""
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(runs.only)
        store.write(partial(exclude_rest, run_id=run.id))
        store.write(lambda conn: runs.set_status(conn, run.id, "done"))


def longer(config, steps):
    return RunConfig.model_validate(
        config.model_dump() | {"trainer": config.trainer.model_dump() | {"steps": steps}}
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"update": AVERAGE},
        {"update": ESS},
        {"lora": {"rank": 2}},
        {"algorithm": "ppo", "update": {"lr": 0.01, "epochs": 2}},
    ],
    ids=["behaviour", "ewma", "snapshot and ess", "lora", "ppo"],
)
def test_an_extended_run_ends_with_the_weights_and_the_optimizer_of_a_long_one(tmp_path, options):
    train = (ppo if options.get("algorithm") == "ppo" else grpo).train
    model = save_model(tmp_path / "model")
    long = make_run(tmp_path / "long", model, steps=STEPS, max_staleness=STEPS, **options)
    short = make_run(tmp_path / "short", model, steps=1, max_staleness=STEPS, **options)
    for folder in (long, short):
        record_groups(folder, range(2 * STEPS))
    train(TrainerSettings(run=long.root))
    for steps in (2, STEPS):
        train(TrainerSettings(run=short.root))
        finish(short)  # which excludes the tokens of all groups that were not trained by then
        assert start_run(short, longer(short.config(), steps), extend=True).kind == "extends"
    train(TrainerSettings(run=short.root))
    finish(long)
    finish(short)
    expected, found = (checkpoint.load_newest(folder.checkpoints) for folder in (long, short))
    assert (found.step, found.version) == (expected.step, expected.version) == (STEPS, STEPS)
    assert _same(expected.weights, found.weights)
    assert _same(expected.optimizer, found.optimizer)
    assert _same(expected.critic, found.critic)
    assert _same(expected.adapters, found.adapters)
    for folder in (long, short):
        with TraceStore.open(folder.store_url()) as store:
            assert verify(store).findings == ()


def _same(one, other):
    """Whether two states are the same to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other
