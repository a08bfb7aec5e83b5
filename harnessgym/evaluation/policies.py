"""Finds the policies of `harnessgym eval`: a model folder, a version of a run, or an upstream's address.

runs/mine          the newest version of a run
runs/mine@12       its version 12
models/qwen        a Hugging Face model folder
http://HOST:PORT   a running engine; the other upstreams of `harnessgym rollout` work too
"""

import re
from functools import partial
from pathlib import Path
from typing import Literal

from harnessgym.config import Config
from harnessgym.errors import ConfigError, PolicyError
from harnessgym.run_folder import RunFolder
from harnessgym.run_identity import run_of
from harnessgym.store import TraceStore, policies
from harnessgym.store.policies import PolicyVersion

_ADDRESS = re.compile(r"(https?|sglang|litellm|scripted)(:|$)")
_DIRECTORY = re.compile(r"v(\d{8,})")


class NamedPolicy(Config):
    """A policy that a name was resolved to."""

    named: str
    """The name as given."""
    kind: Literal["model", "version", "upstream"]
    """model: a model folder. version: a run's version, to be exported to one. upstream: something that
    already answers."""
    where: str
    """Model folder, run folder or address."""
    version: int | None = None
    """Version of a run."""
    policy: str = ""
    """Name of the run's policy; empty for its first one."""

    @property
    def title(self) -> str:
        """Name for display; a run's newest version has its number."""
        return self.named if self.version is None or "@" in self.named else f"{self.named}@{self.version}"

    @property
    def slug(self) -> str:
        """The title as a file name."""
        name = self.where if self.kind == "upstream" else Path(self.title).name
        return re.sub(r"[^A-Za-z0-9._@-]+", "-", name).strip("-.") or "policy"


def find_policy(named: str, policy: str = "") -> NamedPolicy:
    """Resolve a name. `policy` names one of the run's policies, if it trains several.

    Raises `ConfigError` for an unknown name, and `PolicyError` if the run has no such version.
    """
    if _ADDRESS.match(named):
        return NamedPolicy(named=named, kind="upstream", where=named)
    before, at, number = named.rpartition("@")
    # A folder may itself be named `x@12`: an existing path is never split.
    asked = int(number) if at and number.isdecimal() and not Path(named).exists() else None
    path = Path(named if asked is None else before).resolve()
    if not path.is_dir():
        raise ConfigError(
            f"There is no folder {path}. A policy is a Hugging Face model folder, a run folder (RUN, or "
            "RUN@VERSION), or the "
            "address of an engine that runs (http://HOST:PORT)."
        )
    if (path / "versions").is_dir():
        return _of_run(named, RunFolder(path, policy), asked)
    if asked is not None or (path / "traces.db").exists():
        raise ConfigError(
            f"{path} is no run folder that has published a version: it has no folder `versions`."
        )
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{path} is neither a model folder (config.json is missing) nor a run folder (`versions` is "
            "missing)."
        )
    return NamedPolicy(named=named, kind="model", where=str(path))


def _of_run(named: str, folder: RunFolder, asked: int | None) -> NamedPolicy:
    """A version of a run. A first version that is no longer kept is the model folder the run started from."""
    config = folder.config().of_policy(folder.policy)
    if config.policies and not folder.policy:
        known = ", ".join(policy.name for policy in config.all_policies)
        raise ConfigError(
            f"{folder.root} trains several policies ({known}), each for agents of its own, and an evaluation "
            "has one for all. "
            f"Write the one that is meant as a model folder: `harnessgym weights export {folder.root} FOLDER "
            "--policy NAME`."
        )
    recorded = _recorded(folder, config.policy.name)
    kept = _kept(folder)
    usable = [version.version for version in recorded if version.committed and not version.orphaned]
    version = max(usable, default=None) if asked is None else asked
    if version is None:
        raise PolicyError(f"The run {folder.root} has published no version yet.")
    if version in kept:
        return NamedPolicy(
            named=named, kind="version", where=str(folder.root), version=version, policy=folder.policy
        )
    first = next((item.version for item in recorded if item.parent_version is None), None)
    if version == first and config.trainer.publish.dtype is None:
        return NamedPolicy(named=named, kind="model", where=config.policy.path, version=version)
    had = (
        "has none"
        if version not in {item.version for item in recorded}
        else "no longer keeps it (trainer.publish.keep)"
    )
    there = ", ".join(str(number) for number in sorted({*kept, *([] if first is None else [first])}))
    raise PolicyError(
        f"There is no version {version} of {folder.root}: the run {had}. It has: {there or 'none'}."
    )


def _recorded(folder: RunFolder, policy: str) -> list[PolicyVersion]:
    """Versions in the run's store."""
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(partial(run_of, folder=folder))
        found = {} if run is None else store.read(lambda conn: policies.of_run(conn, run.id))
        return store.read(lambda conn: policies.versions(conn, found[policy])) if policy in found else []


def _kept(folder: RunFolder) -> set[int]:
    """Versions that are complete on disk."""
    found = (_DIRECTORY.fullmatch(path.parent.name) for path in folder.versions.glob("v*/COMMITTED"))
    return {int(match[1]) for match in found if match}
