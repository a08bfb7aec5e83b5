"""Blows to an engine outside and to its weight agent: a quickstart with an embedded engine and a stand-in for
vLLM.

The agent is `harnessgym weights-agent`, a process that nobody but this campaign starts again: at once, or
after the lease by which the run counts on its engine may be over. The engine goes on serving what it has. The
engine itself is only stopped, never killed. At the end the calls that the engine answered are compared with
its own ledger: they must have been sampled by the weights of the recorded version.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar

from sqlalchemy import Connection, func, select

from benchmarks.recovery import Campaign, Report
from harnessgym.process import ProcessId, identify
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import calls as recorded
from harnessgym.store import runs
from harnessgym.store.tables import calls, policies, policy_versions, workers
from harnessgym.store.workers import engines_of
from harnessgym.tokens import pack_ids, pack_logprobs

AGENT, ENGINE = "weight agent", "engine outside"
WORKER = "outside"
_LEASE_S = 2.0
_LONGEST_PAUSE_S = 5.0
"""How long an agent is away at most: beyond twice its lease."""
_ANSWER_S = 1.5
"""How long the engine may take to answer its agent before it is silent."""
_ROUTED_S = 3.0
"""How long calls then go to the other engine before the stopped process goes on."""
_LONGEST_S = 4.0
"""A kill comes at most so long after the last one is over; twice that for one that is to come amid an
update."""
Completion = tuple[str, bytes, bytes]
"""Hash of a prompt, and the ids and log-probabilities that were sampled for it."""


@dataclass
class AgentCampaign(Campaign):
    """See `Campaign`; the victims are the agent and its engine."""

    to_the_end: ClassVar[bool] = False
    _engine: subprocess.Popen[str] | None = None
    _agent: subprocess.Popen[bytes] | None = None
    _pauses: random.Random = field(default_factory=lambda: random.Random(0))
    _back_s: list[float] = field(default_factory=list)
    """Seconds from each blow until the engine had the version that was newest then."""

    _amid: int = 0
    """Blows in the middle of an update."""

    def _start(self) -> None:
        self._pauses = random.Random(self.seed)
        self.overrides = ["--engine.workers", "1", *self.overrides]
        super()._start()
        self._wait(self._known, "the run's policy")
        model = RunFolder(self.folder).config().policy.path
        command = [
            sys.executable,
            "-m",
            "benchmarks.outside.engine",
            model,
            str(self._ledger),
            str(os.getpid()),
        ]
        with self._log("engine") as log:
            self._engine = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._engine.stdout is not None
        with self._engine.stdout as said:
            self._settings(said.readline().strip())
        self._start_agent()
        self._wait(lambda: self._read(lambda conn: _serves(conn, 0)), "the engine outside")

    def _known(self) -> bool:
        """Whether the proxy has its settings and the store its run."""
        there = (self.folder / "services" / "proxy.json").exists() and (self.folder / "sockets.json").exists()
        return there and self._read(_policy) is not None

    def _settings(self, address: str) -> None:
        """What the agent is told, as a user would: ids, and the proxy's control key."""
        folder = RunFolder(self.folder)
        sockets = Path(json.loads((self.folder / "sockets.json").read_text()))
        run_id, policy_id = self._read(_policy) or ("", "")
        settings = {
            "engine": "vllm",
            "engine_url": address,
            "worker_id": WORKER,
            "store": folder.store_url(),
            "run_id": run_id,
            "policy_id": policy_id,
            "control_url": f"unix:{sockets / 'control.sock'}",
            "control_key": json.loads((self.folder / "services" / "proxy.json").read_text())["control_key"],
            "lease_ttl_s": _LEASE_S,
            "drain_s": 0.2,
            "look_s": 0.2,
            "answer_s": _ANSWER_S,
            "scratch": str(self._beside("scratch")),
        }
        write_json(self._beside("agent.json"), settings, mode=0o600)

    def _start_agent(self) -> None:
        command = [
            sys.executable,
            "-m",
            "harnessgym",
            "weights-agent",
            "--config",
            str(self._beside("agent.json")),
        ]
        with self._log("agent") as log:
            self._agent = subprocess.Popen(command, stdout=log, stderr=log)

    def _process(self, victim: str) -> ProcessId | None:
        if victim not in (AGENT, ENGINE):
            return super()._process(victim)
        process = self._agent if victim == AGENT else self._engine
        assert process is not None
        return identify(process.pid) if process.poll() is None else None

    def _outlast(self, victim: str, process: ProcessId) -> None:  # noqa: ARG002
        """The agent until nobody counts on its engine any more, the engine until its agent calls it
        silent.
        """
        state = "dead" if victim == AGENT else "silent"
        self._wait(lambda: self._read(lambda conn: _is(conn, state)), f"the engine outside to be {state}")
        time.sleep(_ROUTED_S)

    def _await_moment(self, draw: random.Random) -> None:
        """Any moment, or, as often, one in the middle of an update."""
        deadline = time.monotonic() + draw.uniform(0.0, _LONGEST_S)
        if draw.random() < 0.5:
            deadline += _LONGEST_S
            while time.monotonic() < deadline and not self._finished() and not self._read(_updates):
                time.sleep(0.005)
            self._amid += bool(self._read(_updates))
        else:
            time.sleep(deadline - time.monotonic())

    def _revive(self, victim: str) -> None:  # noqa: ARG002
        """Half the time at once, half after the pause."""
        assert self._agent is not None
        self._agent.wait()
        if self._pauses.random() < 0.5:
            self._start_agent()

    def _settle(self, victim: str, struck: float) -> None:  # noqa: ARG002
        assert self._agent is not None
        if self._agent.poll() is not None:
            time.sleep(self._pauses.uniform(0.0, _LONGEST_PAUSE_S))
            self._start_agent()
        newest = self._read(_newest)
        self._wait(lambda: self._read(lambda conn: _serves(conn, newest)), f"the agent's version {newest}")
        if not self._finished():
            self._back_s.append(time.monotonic() - struck)

    def _end(self) -> None:
        super()._end()
        for process in (self._agent, self._engine):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _examine(self, report: Report) -> None:
        super()._examine(report)
        sampled = _sampled(self._ledger)
        wrong, total = self._read(lambda conn: _compare(conn, sampled))
        report.noted = {"outside_calls": total, "mislabelled": wrong}
        report.noted |= {"serves_again_s": statistics.median(self._back_s or [0.0])}
        report.noted["amid_updates"] = self._amid
        if wrong:
            report.findings.append(
                f"{wrong} of {total} calls were not sampled by the version that is recorded"
            )
        if not total:
            report.findings.append("the engine outside sampled nothing: nothing was tested")

    @property
    def _ledger(self) -> Path:
        return self._beside("ledger.jsonl")

    def _beside(self, name: str) -> Path:
        return self.folder.parent / f"{self.folder.name}.{name}"

    def _log(self, name: str) -> BinaryIO:
        return self._beside(f"{name}.log").open("ab")


def _policy(conn: Connection | None) -> tuple[str, str] | None:
    """Ids of the run and its policy."""
    if conn is None:
        return None
    row = conn.execute(select(policies.c.run_id, policies.c.id)).first()
    return None if row is None else (row[0], row[1])


def _newest(conn: Connection | None) -> int:
    assert conn is not None
    return int(
        conn.execute(select(func.max(policy_versions.c.version)).where(~policy_versions.c.orphaned)).scalar()
        or 0
    )


def _serves(conn: Connection | None, version: int) -> bool:
    """Whether the run counts on the engine, at this version or a later one."""
    assert conn is not None
    run = runs.only(conn)
    found = [row for row in engines_of(conn, run.id) if row.id == WORKER] if run else []
    return any(row.state == "ready" and row.version >= version for row in found)


def _is(conn: Connection | None, state: str) -> bool:
    """Whether the run takes the engine to be in a state."""
    assert conn is not None
    run = runs.only(conn)
    return run is not None and any(
        row.id == WORKER and row.state == state for row in engines_of(conn, run.id)
    )


def _updates(conn: Connection | None) -> bool:
    """Whether the agent is changing its engine's weights."""
    query = select(workers.c.state).where(workers.c.id == WORKER)
    return conn is not None and conn.execute(query).scalar() in ("draining", "updating")


def _sampled(ledger: Path) -> dict[Completion, set[str]]:
    """What the engine says that it sampled to the end, and what the weights that did it were called."""
    labels: dict[int, set[str]] = defaultdict(set)
    out: dict[Completion, set[str]] = defaultdict(set)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:
        if "label" in line and "@" in line["label"]:
            labels[line["serial"]].add(line["label"].partition("@")[0])
    for line in lines:
        if "ids" in line:
            found = [labels[serial] for serial in line["serials"]]
            out[line["prompt"], pack_ids(line["ids"]), pack_logprobs(line["logprobs"])] |= set().union(*found)
    return out


def _compare(conn: Connection | None, sampled: dict[Completion, set[str]]) -> tuple[int, int]:
    """Calls that are recorded under another version than that of the weights that sampled them, and all that
    are compared.

    Those are the calls that ended at the engine and were sampled there from their first token on.
    """
    assert conn is not None
    wrong = total = 0
    columns = (calls.c.session_id, calls.c.prompt_hash, calls.c.completion_segment, calls.c.version_spans)
    for session, prompt, name, spans in conn.execute(
        select(*columns).where(calls.c.upstream == WORKER)
    ).all():
        segment = recorded.segments_of(conn, [session]).get(name)
        if segment is None or segment.logprobs is None:
            continue
        labels = sampled.get((prompt, pack_ids(segment.ids), pack_logprobs(segment.logprobs)))
        if labels is not None:
            total += 1
            wrong += not {str(version) for _, _, version in spans} <= labels
    return wrong, total
