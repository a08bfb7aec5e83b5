"""A stage for one run of a real harness: a store, a proxy, scripted engines, a sandbox, and a line that
can be cut.
"""

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harnessgym.grading.grade import judge
from harnessgym.harness import Endpoint, Harness, start
from harnessgym.outcome.failure import StopReason
from harnessgym.provisioning import equipment, equipment_of
from harnessgym.proxy_client import ControlClient
from harnessgym.run_config.session import SessionOptions
from harnessgym.sandbox import ExecResult, Sandbox, SandboxBackend
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.store import policies, rollouts, runs
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow
from harnessgym.store.trace_store import TraceStore
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Grade, Limits, Task
from proxies.app import Proxy, ProxySettings
from proxies.language import PolicyLanguage
from proxies.upstreams.scripted import Failure, ScriptedUpstream
from tests.suites.harnesses.actor import Actor
from tests.suites.harnesses.line import Line, Tear

_KEY = "control-key"
LIMITS = Limits(wall_s=120.0, memory_mb=1 << 20, processes=512)
"""Node and Bun reserve far more address space than they use."""


@dataclass
class Stage:
    """What one run needs and leaves."""

    store: TraceStore
    proxy: Proxy
    control: ControlClient
    backend: SandboxBackend
    line: Line
    row: RolloutRow
    upstreams: dict[str, ScriptedUpstream]

    async def play(self, harness: Harness, task: Task, *, sampling: dict[str, Any], history: str) -> "Played":
        """Run a harness on a task, seal its session, end its rollout."""
        options = SessionOptions(side_calls=tuple(harness.side_calls), constraints="prompt")
        session = await self.control.open_session(
            self.row.id, sampling=sampling, history=history, options=options
        )
        async with self.backend.open(
            task.limits, equipment(harness, task, self.backend.capabilities)
        ) as sandbox:
            launch = harness.launch(task, Endpoint(sandbox.proxy_url, session.key))
            assert not any(session.key in word for word in launch.argv)
            result = await start(launch, task, sandbox)
            grade, files = await self._look(task, sandbox)
        sealed = await self.control.seal(session.session_id)
        outcome = RolloutOutcome(self.row.id, StopReason.FINISHED, "valid", dict(grade.rewards))
        self.store.write(lambda conn: rollouts.finish(conn, outcome))
        return Played(result, files, session.session_id, sealed.calls, grade)

    async def _look(self, task: Task, sandbox: Sandbox) -> tuple[Grade, dict[str, str]]:
        """The grade of what was left, and its texts; a task without a grader wants `hello.txt`."""
        files = {path.name: path.read_text() for path in sandbox.workspace.glob("*.txt")}
        if not task.grader:
            return Grade({"reward": float("hello.txt" in files)}), files
        fresh = equipment_of(task, grades=True)
        return await judge(task, sandbox, lambda: self.backend.open(task.limits, fresh)), files


@dataclass(frozen=True)
class Played:
    """How a run ended, seen from outside."""

    result: ExecResult
    files: dict[str, str]
    session_id: str
    calls: int
    grade: Grade


MakeBackend = Callable[[Path, Path], SandboxBackend]
"""From the folder for workspaces and the one with the proxy's socket."""


def make_bubblewrap(work: Path, socket: Path) -> SandboxBackend:
    """What the suite runs in by default."""
    return Bubblewrap(BubblewrapSettings(workspace_root=work, proxy_socket_dir=socket))


@asynccontextmanager
async def open_stage(
    language: PolicyLanguage,
    actor: Actor,
    policy: Path,
    *,
    max_length: int,
    lost: Sequence[int] = (),
    tear: Tear | None = None,
    deaths: Sequence[int] = (),
    store: Path | None = None,
    make_backend: MakeBackend = make_bubblewrap,
) -> AsyncIterator[Stage]:
    """A stage whose two workers play `actor`; each dies in the requests `deaths` names, after a few tokens.

    The line loses the answers that `lost` names, and tears one as `tear` says.
    """
    with tempfile.TemporaryDirectory(prefix="hg-stage-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        store_path = store or folder / "traces.db"
        with TraceStore.create(f"sqlite:///{store_path}") as traces:
            row = _rollout(traces)
            failures = [
                Failure(after=7) if number in deaths else None
                for number in range(max(deaths, default=-1) + 1)
            ]
            upstreams = {
                name: ScriptedUpstream(actor, failures=failures, delay_s=0.005) for name in ("w0", "w1")
            }
            settings = ProxySettings(
                store=traces.url,
                run_id=row.run_id,
                policy=policy,
                control_key=_KEY,
                port=0,
                control_port=0,
                max_length=max_length,
                worker_wait_s=5.0,
                disconnect_grace_s=60.0,
            )
            proxy = Proxy(settings, traces, language=language, connect=lambda worker: upstreams[worker.id])
            await proxy.start()
            try:
                for worker in upstreams:
                    await proxy.workers.put(WorkerRow(worker, row.run_id, "scripted", worker, 0, "ready"))
                assert proxy.url is not None
                (folder / "socket").mkdir(mode=0o755)
                port = int(proxy.url.rpartition(":")[2])
                line = Line(
                    folder / "socket" / "proxy.sock", port, list(upstreams.values()), frozenset(lost), tear
                )
                async with line.open(), make_backend(folder / "work", folder / "socket") as backend:
                    control = ControlClient(proxy.control_address, _KEY)
                    async with control:
                        yield Stage(traces, proxy, control, backend, line, row, upstreams)
            finally:
                await proxy.stop()


def _rollout(store: TraceStore) -> RolloutRow:
    run_id = store.write(lambda conn: runs.add(conn, "harnesses", {}, "0", "training"))
    policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
    first = PolicyVersion(0, None, "full", "v0", 0, "", 0, committed=True, orphaned=False)
    store.write(lambda conn: policies.publish(conn, policy_id, first))
    task_id = store.write(lambda conn: runs.add_task(conn, "harnesses", Task("hello", "Write hello.txt.")))
    spec = rollouts.GroupSpec(
        run_id, task_id, policy_id, "evaluation", 0, 0, {}, ("harness",), "bubblewrap", (0,)
    )
    store.write(lambda conn: rollouts.submit(conn, spec))
    (row,) = store.write(lambda conn: rollouts.claim(conn, run_id, "node", 600.0, 1))
    return row
