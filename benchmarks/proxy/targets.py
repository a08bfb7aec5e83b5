"""What is put under load: the engine itself, and proxies before it."""

import asyncio
import json
import secrets
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Protocol

from benchmarks.proxy.answers import POLICY
from benchmarks.proxy.peers import AGENT_LIGHTNING, LITELLM
from benchmarks.proxy.process import Child, free_port
from harnessgym.proxy_client import ControlClient, OpenedSession
from harnessgym.store import policies, rollouts, runs
from harnessgym.store.trace_store import TraceStore
from harnessgym.store.workers import WorkerRow, upsert
from harnessgym.task import Task

CHAT = "/v1/chat/completions"
_KEY = "bench-control"


class Target(Protocol):
    """One thing under load."""

    name: str
    note: str
    port: int
    key: str
    child: Child
    streams: bool

    def open(self, number: int) -> tuple[str, ...]:
        """Paths of this many new sessions."""
        ...

    def close_sessions(self) -> None:
        """End the sessions opened so far."""
        ...

    def stop(self) -> None:
        """End its process."""
        ...


class Engine:
    """The direct path."""

    name, note, key, streams = "direct", "client to engine, no proxy", "none", True

    def __init__(self, folder: Path, rate: float = 0.0, policy: Path = POLICY) -> None:
        self.policy = policy
        argv = [sys.executable, "-m", "benchmarks.proxy.engine", "--rate", str(rate), "--policy", str(policy)]
        self.child = Child(argv, log=folder / f"engine-{policy.name}-{rate:.0f}.log")
        self.address = self.child.line(r"^http\S+")[0]
        self.port = int(self.address.rpartition(":")[2])

    def open(self, number: int) -> tuple[str, ...]:
        """The engine has no sessions."""
        return (CHAT,) * number

    def close_sessions(self) -> None:
        """Nothing is open."""

    def stop(self) -> None:
        """End the process."""
        self.child.stop()


class LiteLlm:
    """LiteLLM's proxy: one worker, nothing captured, nothing stored."""

    name, note, streams = "LiteLLM", f"{LITELLM.requirement}, 1 worker, captures nothing", True

    def __init__(self, engine: Engine, folder: Path) -> None:
        command, self.port, self.key = LITELLM.install(), free_port(), f"sk-{secrets.token_hex(16)}"
        parameters = {"model": "openai/policy", "api_base": f"{engine.address}/v1", "api_key": "none"}
        config = {
            "model_list": [{"model_name": "policy", "litellm_params": parameters}],
            "litellm_settings": {"telemetry": False},
        }
        path = folder / "litellm.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        argv = [
            str(command),
            "--config",
            str(path),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--num_workers",
            "1",
        ]
        argv += ["--telemetry", "False"]
        env = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_MASTER_KEY": self.key,
            "NO_PROXY": "*",
        }
        self.child = Child(argv, env=env, log=folder / "litellm.log")
        self.child.await_port(self.port)

    def open(self, number: int) -> tuple[str, ...]:
        """It has no sessions."""
        return (CHAT,) * number

    def close_sessions(self) -> None:
        """Nothing is open."""

    def stop(self) -> None:
        """End the process."""
        self.child.stop()


class AgentLightning:
    """Agent Lightning's server: captures chat completions in memory, refuses streams."""

    name, note, key = (
        "Agent Lightning",
        f"{AGENT_LIGHTNING.requirement}, captures in memory, refuses streams",
        "none",
    )
    streams = False

    def __init__(self, engine: Engine, folder: Path) -> None:
        command, self.port = AGENT_LIGHTNING.install(), free_port()
        argv = [str(command), f"port={self.port}", "host=127.0.0.1", "default_proxy.model_name=policy"]
        argv += [f"hydra.run.dir={folder}/hydra"]
        self.child = Child(argv, env={"NO_PROXY": "*"}, log=folder / "agentlightning.log")
        self.child.await_port(self.port)
        self._post("/api/models", [{"model": "policy", "endpoint": f"{engine.address}/v1"}])

    def open(self, number: int) -> tuple[str, ...]:
        """One rollout a session."""
        wanted = [{"data_id": str(index), "is_train": True, "input": {}} for index in range(number)]
        made = self._post("/api/rollouts", wanted)
        return tuple(
            f"/proxy/rollout/{row['rollout_id']}/attempt/0/mode/train/openai/v1/chat/completions"
            for row in made
        )

    def close_sessions(self) -> None:
        """What it captured stays in its memory."""

    def stop(self) -> None:
        """End the process."""
        self.child.stop()

    def _post(self, path: str, value: object) -> list[dict[str, str]]:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(value).encode(), headers
        )
        with urllib.request.urlopen(request) as response:
            return list(json.load(response))


class Ours:
    """HarnessGym's proxy: everything captured and committed to SQLite before an answer ends."""

    name, note, key, streams = "HarnessGym", "every call committed to SQLite", "none", True

    def __init__(
        self, engine: Engine, folder: Path, *, sampled: Path | None = None, max_length: int = 1_000_000
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="proxy-", dir=folder))
        self.store_url = f"sqlite:///{folder}/traces.db"
        self.run_id, self._rollouts = _seed(self.store_url, engine.address)
        self._control = f"unix:{folder}/control/c.sock"
        settings = {
            "store": self.store_url, "run_id": self.run_id, "policy": engine.policy, "port": 0, "control_key": _KEY,
            "control_uds": folder / "control/c.sock", "max_length": max_length,
        }  # fmt: skip
        start = (
            ["-m", "harnessgym", "proxy"]
            if sampled is None
            else ["-m", "benchmarks.proxy.sampler", str(sampled)]
        )
        argv = [
            sys.executable,
            *start,
            *(part for name, value in settings.items() for part in (f"--{name}", str(value))),
        ]
        self.child = Child(argv, env={"OMP_NUM_THREADS": "1"}, log=folder / "proxy.log")
        self.port = int(self.child.line(r"at http://127.0.0.1:(\d+)")[1])
        self._opened: list[OpenedSession] = []

    def open(self, number: int) -> tuple[str, ...]:
        """Sessions through the control socket."""
        opened = asyncio.run(self._open(number))
        self._opened += opened
        return tuple(f"/s/{session.key}{CHAT}" for session in opened)

    def close_sessions(self) -> None:
        """Seal them."""
        asyncio.run(self._seal())
        self._opened.clear()

    def stop(self) -> None:
        """End the process."""
        self.child.stop()

    async def _open(self, number: int) -> list[OpenedSession]:
        async with ControlClient(self._control, _KEY) as control:
            options = {"max_tokens": 10_000}
            return [
                await control.open_session(self._rollouts[index % 64], sampling=options)
                for index in range(number)
            ]

    async def _seal(self) -> None:
        async with ControlClient(self._control, _KEY) as control:
            for session in self._opened:
                await control.seal(session.session_id)


def _seed(url: str, engine: str) -> tuple[str, list[str]]:
    """A run with rollouts to record into: (run id, rollout ids)."""
    with TraceStore.create(url) as store:
        run_id = store.write(lambda conn: runs.add(conn, "bench", {}, "bench", "training"))
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        version = policies.PolicyVersion(
            0, None, "full", str(POLICY), 0, "bench", 0, committed=True, orphaned=False
        )
        store.write(lambda conn: policies.publish(conn, policy_id, version))
        task_id = store.write(lambda conn: runs.add_task(conn, "bench", Task(id="0", instruction="")))
        seeds = tuple(range(64))
        spec = rollouts.GroupSpec(
            run_id, task_id, policy_id, "train", 0, 0, {}, ("bench",) * 64, "none", seeds
        )
        store.write(lambda conn: rollouts.submit(conn, spec))
        claimed = store.write(lambda conn: rollouts.claim(conn, run_id, "bench", 3_600.0, 64))
        store.write(lambda conn: upsert(conn, WorkerRow("w0", run_id, "vllm", engine, 0, "ready")))
    return run_id, [row.id for row in claimed]
