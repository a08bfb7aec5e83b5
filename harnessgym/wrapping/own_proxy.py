"""A private proxy: a child process that serves one upstream to one command or node. Resolves `--upstream`,
the one argument that names what answers a wrapped command.
"""

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Connection

from harnessgym.engine_timeouts import EngineTimeouts, timeouts_of
from harnessgym.errors import ConfigError, HarnessGymError
from harnessgym.proxy_client import trust_for
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, policies, runs, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.children import Children, ChildSpec
from harnessgym.supervisor.sockets import Sockets

KINDS = """\
  http://HOST:PORT          an engine that speaks vLLM's completions protocol: vLLM, or
                            `harnessgym engine MODEL`
  sglang:http://HOST:PORT   an SGLang server
  litellm:PROVIDER/MODEL    an outside model, e.g. litellm:anthropic/claude-sonnet-4-5 (recorded as
                            text, never trained on)
  scripted[:FILE]           no model: scripted answers, from a TOML or JSON file or one fixed sentence
  replay:ROLLOUT            no model: what a rollout or session in these traces was answered, as long as
                            it is asked the same"""
_SHIPPED = "environments.lookup"
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class WrapUpstream:
    """The one worker that answers a wrapped command."""

    kind: str
    """Registered name of the upstream."""
    address: str
    """The worker's address; for `replay`, the rollout or session to replay."""
    policy: Path
    """Model folder with its tokenizer and chat template."""
    max_length: int
    """Prompt and completion together, in tokens."""
    parser: str = "auto"
    """Parser of the policy's answers."""


def find_upstream(
    named: str | None, policy: Path | None, max_length: int | None, parser: str = "auto"
) -> WrapUpstream:
    """The upstream that `--upstream` names. Raises `ConfigError`, listing the known kinds, for any other."""
    return replace(_found(named, policy, max_length), parser=parser)


def _found(named: str | None, policy: Path | None, max_length: int | None) -> WrapUpstream:
    if not named:
        raise ConfigError(f"Say what answers, with --upstream:\n{KINDS}")
    kind, colon, rest = named.partition(":")
    if kind in ("http", "https"):
        return _engine("vllm", named, policy, max_length)
    if kind == "sglang" and colon:
        return _engine("sglang", rest, policy, max_length)
    # Kinds without an engine have no context limit of their own, so the default is 2**20 tokens.
    if kind == "scripted":
        if rest and not Path(rest).is_file():
            raise ConfigError(f"--upstream {named}: there is no script {rest!r}.")
        address = f"scripted:{Path(rest).resolve()}" if rest else "scripted:"
        return WrapUpstream("scripted", address, policy or _shipped(), max_length or 1 << 20)
    if kind == "replay" and rest:
        return WrapUpstream("replay", rest, policy or _shipped(), max_length or 1 << 20)
    if kind == "litellm" and rest:
        return WrapUpstream("litellm", named, policy or _shipped(), max_length or 1 << 20)
    raise ConfigError(f"--upstream {named!r} names nothing that answers. Known:\n{KINDS}")


def _engine(kind: str, url: str, policy: Path | None, max_length: int | None) -> WrapUpstream:
    """Ask an engine for its context length and for the path of its model folder.

    Raises `ConfigError` if it does not answer or if the folder is not on this machine.
    """
    url = url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False, verify=trust_for(url)) as http:
            card = http.get(f"{url}/v1/models").raise_for_status().json()["data"][0]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise ConfigError(
            f"--upstream {url} does not answer GET /v1/models as an engine does: {error!r}. Is it up?"
        ) from error
    folder = policy or Path(str(card.get("root") or card.get("id") or ""))
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"The engine at {url} serves {card.get('id')!r}, but its model folder is not at "
            f"{str(folder)!r} on this machine. Give --policy FOLDER with its tokenizer.json, "
            "tokenizer_config.json and chat template."
        )
    return WrapUpstream(kind, url, folder, max_length or int(card.get("max_model_len") or 32_768))


def _shipped() -> Path:
    """The policy folder that ships with HarnessGym.

    Its tokenizer and template are used for upstreams that have no engine.
    """
    spec = find_spec(_SHIPPED)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "Give --policy FOLDER: the policy that ships with HarnessGym is not installed "
            "(harnessgym-rl[envs])."
        )
    folder = Path(spec.submodule_search_locations[0]) / "policy"
    json.loads((folder / "config.json").read_text())
    return folder


_RESTARTS = 5
_START_S = 60.0
"""Seconds for a proxy to answer; after that its callers' own patience decides."""
_PROBE_S = 0.25


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """The addresses and keys of a running proxy."""

    url: str
    control_url: str
    control_key: str
    store_url: str
    run_id: str
    log: Path
    socket_dir: Path
    """Folder with the proxy's Unix socket, for sandboxes without a network."""
    outside: str | None = None
    """Kind of the outside model that answers; None if an engine answers."""
    replay: str | None = None
    """The rollout or session that is replayed; None if nothing is replayed."""


class OwnProxy:
    """The proxy's child process while the context of `own_proxy` is open."""

    def __init__(self, address: RunningProxy, children: Children) -> None:
        self.address = address
        self._children = children

    def check(self) -> None:
        """Raises `HarnessGymError` with the end of the log if the proxy has exited."""
        if self._children.exited():
            raise HarnessGymError(
                f"The proxy ended: {self._children.log_tail('proxy')} Its log: {self.address.log}."
            )

    def await_start(self) -> None:
        """Return when the proxy answers. Raises `HarnessGymError` with the end of the log if it exits."""
        # Its sockets are open already, so a connection says nothing: only an answer does.
        transport = httpx.HTTPTransport(uds=self.address.control_url.removeprefix("unix:"))
        end = time.monotonic() + _START_S
        with httpx.Client(transport=transport, base_url="http://proxy", timeout=_PROBE_S) as http:
            while time.monotonic() < end:
                self.check()
                with suppress(httpx.TransportError):
                    http.get("/control/health")
                    return

    def revive(self) -> None:
        """Restart the proxy if it has exited or hangs; connections wait meanwhile.

        Raises `HarnessGymError` if it dies too often within a minute.
        """
        self._children.revive()


def add_run(
    conn: Connection,
    name: str,
    upstream: WrapUpstream,
    config: dict[str, Any] | None = None,
    run_id: str | None = None,
) -> str:
    """Add a run with one worker and policy version 0, and return the run's id.

    Tokens that the worker does not label belong to version 0.
    """
    values = {
        "upstream": upstream.address,
        "kind": upstream.kind,
        "policy": str(upstream.policy),
        "parser": upstream.parser,
        **(config or {}),
    }
    run_id = runs.add(conn, name, values, version("harnessgym-rl"), "training", run_id)
    served = PolicyVersion(0, None, "full", upstream.address, 0, "", 0, committed=True, orphaned=False)
    policies.publish(conn, policies.register(conn, run_id, "policy"), served)
    # Every proxy has a replay upstream built in, so only the other kinds need a worker row.
    if upstream.kind != "replay":
        workers.upsert(
            conn, WorkerRow(f"{run_id}-upstream", run_id, upstream.kind, upstream.address, 0, "ready")
        )
    return run_id


@contextmanager
def own_proxy(
    store: TraceStore,
    folder: RunFolder,
    run_id: str,
    upstream: WrapUpstream,
    model: str,
    timeouts: EngineTimeouts | None = None,
) -> Iterator[OwnProxy]:
    """Start a proxy for a run and stop it when the context or this process ends.

    The folder holds its log and settings. `timeouts` limits how long the upstream may be silent.
    """
    key = secrets.token_urlsafe(24)
    children = Children(folder, 1, _RESTARTS)
    # A killed process may have left its proxy running: end that before its socket folder is removed.
    children.end_leftovers()
    # This process opens the sockets and the child inherits them: a restarted proxy keeps the same
    # addresses, and connections queue in the kernel until it accepts again.
    sockets = Sockets(0, folder.root / "sockets.json")
    fds = (sockets.tcp.fileno(), sockets.unix.fileno(), sockets.control.fileno())
    settings = {
        "store": store.url,
        "run_id": run_id,
        "policy": str(upstream.policy),
        "parser": upstream.parser,
        "fd": fds[0],
        "uds_fd": fds[1],
        "control_fd": fds[2],
        "control_key": key,
        "served_model_name": model,
        "max_length": upstream.max_length,
        **timeouts_of(timeouts or EngineTimeouts()),
    }
    try:
        children.start(ChildSpec("proxy", "proxy", settings, fds))
        address = RunningProxy(
            sockets.proxy_url,
            sockets.control_url,
            key,
            store.url,
            run_id,
            children.log_path("proxy"),
            sockets.proxy_folder,
            outside=upstream.kind if upstream.kind == "litellm" else None,
            replay=upstream.address if upstream.kind == "replay" else None,
        )
        proxy = OwnProxy(address, children)
        proxy.await_start()
        yield proxy
    finally:
        children.end_all()
        sockets.close()
