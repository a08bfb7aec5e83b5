"""A run folder as a training run leaves it, made by the trainer's own publisher."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import torch

from harnessgym.config import validate
from harnessgym.run_config.run import RunConfig
from harnessgym.store import TraceStore, policies, runs
from harnessgym.store.policies import PolicyVersion
from harnessgym.supervisor import prepare
from trainers.policies.loading import load_policy
from trainers.weights.manifest import version_path
from trainers.weights.publish import BaseVersion, publish

POLICY = Path(__file__).parents[3] / "environments" / "lookup" / "policy"


class Published:
    """A run of the shipped policy: version 0 is whole, every further one a delta that ruins it in one
    tensor more.
    """

    def __init__(self, root, **changes):
        raw = {
            "name": "run",
            "policy": {"name": "p", "path": str(POLICY)},
            "tasks": {"set": "lookup"},
            "harnesses": [
                {"name": "one", "settings": {"argv": ["one"]}},
                {"name": "two", "settings": {"argv": ["two"]}},
            ],
        }
        self.folder = prepare(validate(RunConfig, raw | changes, "the test"), root)
        self.store = TraceStore.create(self.folder.store_url())
        run_id = self.store.write(lambda conn: runs.add(conn, "run", {}, "0", "training"))
        self.policy_id = self.store.write(lambda conn: policies.register(conn, run_id, "p"))
        self.weights = load_policy(POLICY).published()
        self.version = -1
        self.folder.versions.mkdir()

    def publish(self):
        base = BaseVersion(self.version, self.weights) if self.version >= 0 else None
        if base is not None:
            name = [name for name in sorted(self.weights) if name.endswith("norm.weight")][self.version]
            self.weights = {**self.weights, name: torch.zeros_like(self.weights[name])}
        self.version += 1
        made = publish(
            self.folder.versions,
            self.version,
            base and base.version,
            self.weights,
            self.version,
            "r",
            base=base,
        )
        row = PolicyVersion(
            self.version,
            base and base.version,
            made.kind,
            str(made.path),
            self.version,
            made.checksum,
            made.bytes,
            True,
            False,
        )
        self.store.write(lambda conn: policies.publish(conn, self.policy_id, row))

    def remove(self, version):
        shutil.rmtree(version_path(self.folder.versions, version))


@contextmanager
def published(root, versions=3, **changes):
    """A run folder with so many versions."""
    run = Published(root, **changes)
    for _ in range(versions):
        run.publish()
    try:
        yield run
    finally:
        run.store.close()
