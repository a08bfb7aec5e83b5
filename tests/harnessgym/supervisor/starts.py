"""Starts of runs without the processes: what `harnessgym train` does before it spawns anything."""

from functools import partial

import pytest

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.run_config.run import RunConfig
from harnessgym.run_identity import run_of
from harnessgym.store import TraceStore, policies, runs
from harnessgym.store.policies import PolicyVersion
from harnessgym.supervisor import prepare, start_run

OUTSIDE = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
"""Kinds of databases that are not in the run's folder."""


def config(url=None, steps=6, **changes):
    raw = {
        "name": "x",
        "policy": {"path": "environments/lookup/policy"},
        "tasks": {"set": "lookup"},
        "harnesses": [{"name": "pi", "settings": {"argv": ["pi"]}}],
        "store": {"url": url},
        "trainer": {"steps": steps},
    }
    return validate(RunConfig, raw | changes, "the test")


def start(root, told, *, extend=False, notify=lambda _: None):
    """As `harnessgym train` does before it spawns anything; without the claim, which ends with its
    process.
    """
    return start_run(prepare(told, root, extend=extend), told, notify, extend=extend)


def stored(url):
    with TraceStore.open(url) as store:
        return store.read(runs.all_of)


def publish(folder, step, *, checkpoint=True):
    """A version after so many steps, as a trainer leaves it: its checkpoint, its folder and its row."""
    path = folder.versions / f"v{step:08d}"
    path.mkdir(parents=True)
    if checkpoint:
        (folder.checkpoints / f"step-{step:06d}").mkdir(parents=True)
        (folder.checkpoints / f"step-{step:06d}" / "state.pt").touch()
    row = PolicyVersion(
        step, step - 1 if step else None, "full", str(path), step, "c", 1, committed=True, orphaned=False
    )
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(partial(run_of, folder=folder))
        policy = store.write(lambda conn: policies.register(conn, run.id, "policy"))
        store.write(lambda conn: policies.publish(conn, policy, row))


def refused(root, told, *words, **options):
    with pytest.raises(ConfigError) as caught:
        start(root, told, **options)
    for word in words:
        assert str(word) in str(caught.value)
    return str(caught.value)
