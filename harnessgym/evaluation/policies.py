"""Finds the policies of `harnessgym eval`: a model folder, a version of a run, or an upstream's address.

runs/mine          the newest version of a run
runs/mine@12       its version 12
models/qwen        a Hugging Face model folder
http://HOST:PORT   a running engine; the other upstreams of `harnessgym rollout` work too

A model folder is served by an `OwnEngine`, a child process that lives as long as the evaluation. The tasks,
the harness, the sandbox and the sampling come from a run's file.
"""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx

from harnessgym.config import Config, nearest
from harnessgym.engine_timeouts import timeouts_of
from harnessgym.errors import ConfigError, HarnessGymError, PolicyError
from harnessgym.proxy_client import trust_for
from harnessgym.registry import load
from harnessgym.run_config.run import HarnessSection, RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.run_identity import run_of
from harnessgym.store import TraceStore, policies
from harnessgym.store.policies import PolicyVersion
from harnessgym.supervisor.children import Children, ChildSpec
from harnessgym.supervisor.preparation import choose_sandbox
from harnessgym.supervisor.sockets import url_of

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
            "RUN@VERSION), or the address of an engine that runs (http://HOST:PORT)."
        )
    if (path / "versions").is_dir():
        return _of_run(named, RunFolder(path, policy), asked)
    if asked is not None or (path / "traces.db").exists():
        raise ConfigError(
            f"{path} is not a run folder with a published version: it has no folder `versions`."
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
            f"{folder.root} trains several policies ({known}), but an evaluation uses one policy for all "
            "agents. Export the policy to evaluate to a model folder: `harnessgym weights export "
            f"{folder.root} FOLDER --policy NAME`."
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


def checksum_of(named_policy: NamedPolicy) -> str:
    """The checksum that a run's store recorded for a version.

    Raises `PolicyError` if the run never published it.
    """
    folder = RunFolder(Path(named_policy.where), named_policy.policy)
    name = folder.config().of_policy(folder.policy).policy.name
    known = {version.version: version.checksum for version in _recorded(folder, name)}
    if named_policy.version not in known:
        raise PolicyError(
            f"{folder.versions} has version {named_policy.version}, but the run never published it: it is "
            "not in the run's store."
        )
    return known[named_policy.version]


def _recorded(folder: RunFolder, policy: str) -> list[PolicyVersion]:
    """Versions in the run's store."""
    with TraceStore.open(folder.store_url()) as store:
        run = store.read(partial(run_of, folder=folder))
        policy_ids = {} if run is None else store.read(lambda conn: policies.of_run(conn, run.id))
        return (
            store.read(lambda conn: policies.versions(conn, policy_ids[policy]))
            if policy in policy_ids
            else []
        )


def _kept(folder: RunFolder) -> set[int]:
    """Versions that are complete on disk."""
    matches = (_DIRECTORY.fullmatch(path.parent.name) for path in folder.versions.glob("v*/COMMITTED"))
    return {int(match[1]) for match in matches if match}


_RESTARTS = 5
_LOOK_S = 0.1
_ANSWER_S = 2.0
_NAME = "engine"


class OwnEngine:
    """The child process; usable while the context of `own_engine` is open."""

    def __init__(self, url: str, children: Children) -> None:
        self.url = url
        self._children = children

    def revive(self) -> None:
        """Restart it if it has ended or hangs; connections queue meanwhile.

        Raises `HarnessGymError` if it ends again and again.
        """
        self._children.revive()

    async def ready(self) -> None:
        """Wait until it serves, however long the model loads. Raises `PolicyError` if it ends first."""
        async with httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False, verify=trust_for(self.url)) as http:
            while not self._children.exited():
                try:
                    if (await http.get(f"{self.url}/health")).is_success:
                        return
                except (
                    httpx.TransportError
                ):  # it is loading: this process holds the socket, where connections queue
                    pass
                await asyncio.sleep(_LOOK_S)
        words = self._children.log_tail(_NAME).removeprefix("harnessgym: ")
        raise PolicyError(
            f"The engine cannot serve this model: {words}\nIts log: {self._children.log_path(_NAME)}."
        )


@asynccontextmanager
async def own_engine(
    folder: RunFolder, model: Path, max_batch: int, max_length: int | None
) -> AsyncIterator[OwnEngine]:
    """Serve a model folder until the context or this process ends. Log and settings go to `folder`."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    children = Children(folder, threads, _RESTARTS)
    children.end_leftovers()
    try:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    except OSError as error:
        raise HarnessGymError(
            f"No free port on 127.0.0.1: {error}. End the processes that hold them and start again."
        ) from error
    with listener:
        settings = {
            "model": str(model),
            "fd": listener.fileno(),
            "max_batch": max_batch,
            "max_length": max_length,
            "threads": threads,
        }
        try:
            # This process holds the listener, so requests queue while the engine loads or restarts.
            children.start(ChildSpec(_NAME, "engine", settings, (listener.fileno(),)))
            engine = OwnEngine(url_of(listener), children)
            await engine.ready()
            yield engine
        finally:
            children.end_all()


def as_in_run(config: RunConfig, harness: str | None, notify: Callable[[str], None]) -> dict[str, Any]:
    """Campaign settings with the run's harness of this name, or its first harness.

    `notify` gets a message about the choice. Raises `ConfigError` if the run has no such harness or its
    sandbox cannot be used.
    """
    section = _harness(config, harness)
    if harness is None and len(config.harnesses) > 1:
        others = ", ".join(each.name for each in config.harnesses if each is not section)
        notify(f"Harness: {section.name}, the first of the run's. --harness takes another: {others}.")
    return {
        "tasks": config.tasks.set,
        "unfit": config.tasks.unfit,
        "limit": config.evaluation.tasks or None,
        "harness": section.type,
        "harness_settings": section.settings,
        "sandbox": choose_sandbox(config, notify, lambda backend: load("sandbox", backend).unavailable()),
        "hidden": config.sandbox.hidden,
        "second_opinion": config.node.second_opinion,
        "integrity": config.node.integrity,
        "temperature": config.sampling.temperature,
        "max_tokens": config.sampling.max_tokens,
        "max_length": config.engine.max_length,
        "at_once": config.node.max_running,
        "retries": config.node.max_attempts - 1,
        "seed": config.seed,
        "model": config.policy.name,
        "session": config.session,
    } | timeouts_of(config.engine)


def _harness(config: RunConfig, name: str | None) -> HarnessSection:
    if name is None:
        return config.harnesses[0]
    harness = next((each for each in config.harnesses if each.name == name), None)
    if harness is None:
        raise ConfigError(
            f"The run has no harness {name!r}. {nearest(name, [each.name for each in config.harnesses])}"
        )
    return harness
