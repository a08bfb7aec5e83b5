"""Runs one command against its own proxy, or against that of a live run, and records it as a rollout.

The command keeps its terminal, working directory and arguments. Its environment variables say where the model
is. A harness that reads its settings from files also gets a home folder with those files.
"""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import ConfigError, HarnessError, StoreError
from harnessgym.harness import Endpoint, Harness, SideCallRule
from harnessgym.outcome.failure import CONSEQUENCES, Cause, StopReason
from harnessgym.process import interruption_deferred
from harnessgym.proxy_client import ControlClient
from harnessgym.registry import load
from harnessgym.run_config.session import SessionOptions
from harnessgym.run_folder import RunFolder
from harnessgym.run_identity import refuse_run_folder
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.backend import url_of_file
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.task import Task
from harnessgym.wrapping.own_proxy import RunningProxy, WrapUpstream, add_run, find_upstream, own_proxy

PROGRAMS = {
    "claude": "claude_code",
    "codex": "codex",
    "gemini": "gemini_cli",
    "mini": "mini_swe_agent",
    "opencode": "opencode",
    "pi": "pi",
    "qwen": "qwen_code",
}
"""Maps a program name to the harness that describes it."""
_HOME = ".agent/"


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """Environment and files of one command."""

    harness: str
    """Registered name; `command` for an unknown program."""
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Maps a path in the command's home folder to its text. If empty, `HOME` stays the user's own."""
    side_calls: Sequence[SideCallRule]


def surroundings_of(argv: Sequence[str], endpoint: Endpoint, harness: str | None) -> CommandEnvironment:
    """The environment and files that point a command at the proxy.

    Raises `ConfigError` for an unknown harness.
    """
    name = harness or PROGRAMS.get(Path(argv[0]).name, "command")
    generic = _providers(endpoint)
    if name == "command":
        return CommandEnvironment(name, generic, {}, ())
    factory = load("harness", name)
    described: Harness = factory(factory.settings())
    launch = described.launch(Task("wrap", ""), endpoint)
    files = {path.removeprefix(_HOME): text for path, text in launch.files.items() if path.startswith(_HOME)}
    return CommandEnvironment(name, {**generic, **launch.env}, files, described.side_calls)


def _providers(endpoint: Endpoint) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": endpoint.openai_url,
        "OPENAI_API_BASE": endpoint.openai_url,
        "OPENAI_API_KEY": endpoint.key,
        "OPENAI_MODEL": endpoint.model,
        "ANTHROPIC_BASE_URL": endpoint.anthropic_url,
        "ANTHROPIC_API_KEY": endpoint.key,
        "ANTHROPIC_MODEL": endpoint.model,
        "GOOGLE_GEMINI_BASE_URL": endpoint.gemini_url,
        "GEMINI_API_KEY": endpoint.key,
        "GOOGLE_API_KEY": endpoint.key,
        "GOOGLE_GENERATIVE_AI_API_KEY": endpoint.key,
    }


_LEASE_S = 120.0
"""Seconds for which a rollout is this process's own, unless it says that it still is."""
_RENEWED_S = 30.0
"""Seconds between two times that it says so."""


class WrapSettings(EngineTimeouts):
    """How a command is wrapped."""

    folder: Path
    """Where the trace store and the proxy's log are."""
    upstream: str | None = None
    policy: Path | None = None
    """Model folder, where the upstream does not tell it."""
    parser: str = "auto"
    """Parser of the policy's answers."""
    harness: str | None = None
    """Registered harness; found by the program's name if not given."""
    model: str = "policy"
    """Model name the command sees."""
    join: Path | None = None
    """Folder of a live run whose proxy is used."""
    turns: int | None = None
    """Model calls at most."""
    tokens: int | None = None
    """Sampled tokens at most."""
    max_length: int | None = None
    """Prompt and completion of a call together; the engine's own limit if not given."""
    max_tokens: int = 4_096
    """New tokens per call at most."""
    options: SessionOptions = SessionOptions(constraints="prompt")


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The result of a wrapped command."""

    status: int
    """Exit status of the command."""
    store_url: str
    rollout_id: str
    harness: str
    calls: int
    seconds: float


def wrap(argv: Sequence[str], settings: WrapSettings) -> Wrapped:
    """Run a command with the proxy as its provider. Raises `HarnessGymError` if it cannot be started."""
    upstream = (
        None
        if settings.join
        else find_upstream(settings.upstream, settings.policy, settings.max_length, settings.parser)
    )
    # An unknown harness must fail here, before a run and a proxy exist.
    surroundings_of(argv, Endpoint("http://127.0.0.1", "-"), settings.harness)
    proxies = _joined(settings.join) if upstream is None else _own(settings, upstream)
    with proxies as proxy, TraceStore.open(proxy.store_url) as store:
        return asyncio.run(_run(argv, settings, proxy, store))


async def _run(
    argv: Sequence[str], settings: WrapSettings, proxy: RunningProxy, store: TraceStore
) -> Wrapped:
    endpoint = Endpoint(proxy.url, "", settings.model)
    surroundings = surroundings_of(argv, endpoint, settings.harness)
    holder = f"{rollouts.OUTSIDE}{os.getpid()}"
    rollout_id = store.write(
        lambda conn: _add_rollout(conn, proxy.run_id, surroundings.harness, argv, holder)
    )
    with _held(store, rollout_id, holder):
        return await _recorded(argv, settings, proxy, store, rollout_id, surroundings)


@contextmanager
def _held(store: TraceStore, rollout_id: str, holder: str) -> Iterator[None]:
    """Keeps a rollout until the end. One that has not ended by then has failed."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEWED_S):
            with suppress(StoreError):  # the next time may be in time
                store.write(lambda conn: rollouts.renew(conn, [rollout_id], holder, _LEASE_S))

    keeper = threading.Thread(target=renew, name="lease", daemon=True)
    keeper.start()
    try:
        yield
    except BaseException as error:
        cause = Cause.HARNESS_UNUSABLE if isinstance(error, HarnessError) else Cause.PROXY_ERROR
        if not isinstance(error, Exception):
            cause = Cause.CANCELLED
        _fail(store, rollout_id, cause, str(error) or type(error).__name__)
        raise
    finally:
        ended.set()
        keeper.join()


def _fail(store: TraceStore, rollout_id: str, cause: Cause, detail: str) -> None:
    reason = CONSEQUENCES[cause].stop_reason
    outcome = RolloutOutcome(rollout_id, reason, "infrastructure_error", detail=detail, cause=cause)
    store.write(lambda conn: rollouts.fail(conn, outcome, 0))


async def _recorded(
    argv: Sequence[str],
    settings: WrapSettings,
    proxy: RunningProxy,
    store: TraceStore,
    rollout_id: str,
    surroundings: CommandEnvironment,
) -> Wrapped:
    """Runs the command in a session of its rollout."""
    side_calls = (*settings.options.side_calls, *surroundings.side_calls)
    answered = {"upstream": proxy.outside, "replay": proxy.replay}
    options = settings.options.model_copy(update={"side_calls": side_calls, **answered})
    limits = {"turns": settings.turns, "tokens": settings.tokens}
    async with ControlClient(proxy.control_url, proxy.control_key) as control:
        sampling = {"max_tokens": settings.max_tokens}
        session = await control.open_session(rollout_id, sampling=sampling, limits=limits, options=options)
        surroundings = surroundings_of(
            argv, Endpoint(proxy.url, session.key, settings.model), settings.harness
        )
        home = proxy.log.parent.parent / "home" / rollout_id
        env = {**os.environ, **surroundings.env}
        if surroundings.files:
            env["HOME"] = str(home)
            for path, text in surroundings.files.items():
                (home / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                (home / path).write_text(text)
        started = time.monotonic()
        # This blocks the event loop on purpose: nothing else runs in it while the command has the terminal.
        # The session is sealed even if the command cannot be started.
        try:
            status = _attend(argv, env)
        finally:
            sealed = await control.seal(session.session_id)
    seconds = time.monotonic() - started
    reason = (
        StopReason.NO_CALLS
        if not sealed.calls
        else StopReason.HARNESS_ERROR
        if status
        else StopReason.FINISHED
    )
    detail = f"`{shlex.join(argv)}` ended with status {status}."
    outcome = RolloutOutcome(
        rollout_id, reason, "valid", source="none", detail=detail, latencies={"run": round(seconds, 3)}
    )
    store.write(lambda conn: rollouts.finish(conn, outcome))
    return Wrapped(status, proxy.store_url, rollout_id, surroundings.harness, sealed.calls, seconds)


def _attend(argv: Sequence[str], env: dict[str, str]) -> int:
    """Run the command and return its exit status as a shell reports it: 128 + N for signal N.

    Ctrl-C reaches the command through the terminal; this process ignores it and waits.
    """
    # An interrupt inside Popen could leave a child that nobody waits for.
    with interruption_deferred():
        try:
            child = subprocess.Popen(argv, env=env)
        except OSError as error:
            raise HarnessError(
                f"The command {argv[0]!r} cannot be started: {error.strerror or error}."
            ) from error
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, earlier)
        if child.poll() is None:
            child.kill()
            child.wait()
    return code if code >= 0 else 128 - code


def _add_rollout(conn: Connection, run_id: str, harness: str, argv: Sequence[str], holder: str) -> str:
    """Add a task, a group and a running rollout for one command, and return the rollout's id."""
    task_id = runs.add_task(conn, "wrap", Task("command", shlex.join(argv)))
    policy_id = policies.register(conn, run_id, "policy")
    group = GroupSpec(run_id, task_id, policy_id, "wrap", 0, 0, {}, (harness,), "none", (0,))
    return rollouts.start(conn, group, holder, _LEASE_S)


@contextmanager
def _own(settings: WrapSettings, upstream: WrapUpstream) -> Iterator[RunningProxy]:
    """A proxy for this command alone. Each command adds a run to the folder's store."""
    refuse_run_folder(
        settings.folder, "Give another --folder; or --join that folder, to use the proxy of a live run."
    )
    settings.folder.mkdir(parents=True, exist_ok=True)
    url = url_of_file(settings.folder.resolve() / "traces.db")
    with TraceStore.create(url) as store:
        for lost in store.read(rollouts.lost_outside):
            _fail(store, lost, Cause.NODE_LOST, "`harnessgym wrap` was killed.")
        run_id = store.write(lambda conn: add_run(conn, "wrap", upstream))
        folder = RunFolder(settings.folder.resolve() / run_id)
        try:
            with own_proxy(store, folder, run_id, upstream, settings.model, settings) as proxy:
                yield proxy.address
                proxy.check()
        finally:
            store.write(lambda conn: runs.set_status(conn, run_id, "done"))


@contextmanager
def _joined(folder: Path | None) -> Iterator[RunningProxy]:
    """The proxy of a live run. Raises `ConfigError` if the folder has none."""
    assert folder is not None
    try:
        settings = json.loads((folder / "services" / "proxy.json").read_text())
        socket = Path(json.loads((folder / "sockets.json").read_text())) / "control.sock"
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--join {folder}: no run has its proxy there now ({error}). Give the folder of a live run."
        ) from error
    control_url = f"unix:{socket}"
    key = settings["control_key"]

    async def address() -> str:
        async with ControlClient(control_url, key, retry_s=3.0) as control:
            return str((await control.stats())["url"])

    log = RunFolder(folder).logs / "proxy.log"
    yield RunningProxy(
        asyncio.run(address()),
        control_url,
        key,
        settings["store"],
        settings["run_id"],
        log,
        socket.parent / "proxy",
    )
