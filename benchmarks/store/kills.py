"""Kills of a proxy that writes, and of its database: `python -m benchmarks.store.kills [--kills 50] [--seed 0]`.

A real proxy process stores the calls of eight conversations. At seeded moments it gets SIGKILL, or the PostgreSQL server gets
SIGQUIT, which ends it as a crash does. After each kill the store is read: every call that a client was answered must be there
with its exact tokens, every other one with its whole outcome or none; the file must be sound and `traces verify` without
findings. Then the conversations go on, and a call that was torn must be taken up, not made twice. Prints tables, writes
benchmarks/out/kills.json.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection

from benchmarks.store.cluster import Cluster, postgres_available
from benchmarks.store.echo import KIND, answer, vocabulary
from benchmarks.store.talkers import KEY, POLICY, ProxyProcess, Talker
from harnessgym.rollout.control import ControlClient
from harnessgym.run_folder import write_json
from harnessgym.store import TraceStore, calls, policies, rollouts, runs, workers
from harnessgym.store.calls import FINISHED, RecordedCall, Segment
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Task
from harnessgym.traces.verify import verify
from proxies.language import Language
from proxies.upstreams.scripted import logprob

_OUT = Path("benchmarks/out/kills.json")
_TALKERS = 8
_LONGEST_S = 0.4
"""A kill comes at most this long after every conversation has had an answer."""
_ON_THE_WAY_S = 0.05
"""An answer that a proxy sent before it died reaches its client in this time."""
_PATIENCE_S = 60.0


@dataclass
class Report:
    """What a campaign on one database found."""

    kills: Counter[str] = field(default_factory=Counter)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from each kill to the next answer that a client got."""
    answered: int = 0
    """Calls that clients were answered."""
    lost: set[str] = field(default_factory=set)
    """Answered calls that are gone, or have other tokens."""
    torn: int = 0
    """Calls that a kill left as intents."""
    left: int = 0
    """Torn calls that were not taken up when their clients asked again."""
    half: set[str] = field(default_factory=set)
    """Calls that are neither intents without an outcome nor finished with all of it."""
    doubled: int = 0
    """Calls that were finished and that no client asked for."""
    findings: set[str] = field(default_factory=set)
    """Of `traces verify`, and of the database's own check."""
    refused: Counter[str] = field(default_factory=Counter)
    """How often clients were told to come back."""

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, left, halved, doubled or found wrong."""
        return not (self.lost or self.left or self.half or self.doubled or self.findings)


@dataclass
class Campaign:
    """One database under kills."""

    url: str
    seed: int
    cluster: Cluster | None = None
    """Its server, if that may be ended."""
    report: Report = field(default_factory=Report)
    talkers: list[Talker] = field(default_factory=list)
    """The latest conversations."""

    def __post_init__(self) -> None:
        self._language = Language.of_policy(POLICY)
        self._words = vocabulary(self._language)

    async def run(self, victims: Sequence[str]) -> Report:
        """Kill `proxy` or `server` in turn. Raises `RuntimeError` if the conversations stop."""
        draw = random.Random(self.seed)
        with TraceStore.create(self.url) as store:
            run_id, rollout_id = store.write(self.prepare)
            with ProxyProcess(self.url, run_id) as proxy:
                async with httpx.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http:
                    for victim in victims:
                        await self._round(store, proxy, http, rollout_id, victim, draw)
        return self.report

    async def _round(
        self, store: TraceStore, proxy: ProxyProcess, http: httpx.AsyncClient, rollout_id: str, victim: str, draw: random.Random
    ) -> None:
        """Talk, kill, look, go on, seal, look again."""
        async with ControlClient(proxy.control_url, KEY, retry_s=_PATIENCE_S) as control:
            opened = [await control.open_session(rollout_id) for _ in range(_TALKERS)]
            self.talkers, enough = [Talker(http, proxy.url, session) for session in opened], asyncio.Event()
            talking = [asyncio.create_task(talker.talk(enough)) for talker in self.talkers]
            try:
                await _further(self.talkers, talking)
                await asyncio.sleep(draw.uniform(0.0, _LONGEST_S))
                began = time.monotonic()
                began += await self._kill(store, proxy, victim)
                await _further(self.talkers, talking, some=True)
                self.report.recovery_s.setdefault(victim, []).append(time.monotonic() - began)
                await _further(self.talkers, talking)
            finally:
                enough.set()
                await asyncio.gather(*talking)
            for session in opened:
                await control.seal(session.session_id)
        self._end_round(store, victim)

    async def _kill(self, store: TraceStore, proxy: ProxyProcess, victim: str) -> float:
        """Kill, look where that is possible, start again. Returns how many seconds the look took."""
        if victim == "server":
            assert self.cluster is not None
            await asyncio.to_thread(self.cluster.stop, signal.SIGQUIT)
            await asyncio.to_thread(self.cluster.start)
            return 0.0
        proxy.end(signal.SIGKILL)
        began = time.monotonic()
        await asyncio.sleep(_ON_THE_WAY_S)
        self.report.torn += sum(call.status == "intent" for call in self._calls(store))
        self.look(store)
        looked = time.monotonic() - began
        proxy.start()
        return looked

    def _end_round(self, store: TraceStore, victim: str) -> None:
        """Look when every conversation has ended."""
        self.look(store)
        answered = {item.call_id for talker in self.talkers for item in talker.got}
        found = self._calls(store)
        finished = {call.id for call in found if call.status in FINISHED}
        self.report.left += sum(call.status == "intent" for call in found)
        self.report.kills[victim] += 1
        self.report.answered += len(answered)
        self.report.doubled += len(finished - answered)
        for talker in self.talkers:
            self.report.refused.update(talker.refused)

    def look(self, store: TraceStore) -> None:
        """Compare the store with what the latest clients know, and with itself."""
        found = {call.id: call for call in self._calls(store)}
        segments = store.read(lambda conn: calls.segments_of(conn, self._sessions))
        self.report.half.update(call.id for call in found.values() if not _whole(call))
        for heard in (item for talker in self.talkers for item in talker.got):
            call = found.get(heard.call_id)
            if call is None or call.status not in FINISHED or not self._exact(call, segments, heard.text):
                self.report.lost.add(heard.call_id)
        self.report.findings.update(f"{item.kind}: {item.where}: {item.message}" for item in verify(store).findings)
        if self.cluster is None:
            sound = store.read(lambda conn: conn.exec_driver_sql("PRAGMA integrity_check").scalar())
            self.report.findings.update([] if sound == "ok" else [f"integrity_check: {sound}"])

    def _exact(self, call: RecordedCall, segments: dict[str, Segment], text: str) -> bool:
        """Whether a call has the tokens that the engine gives this prompt, and that say what the client heard."""
        completion = segments[call.completion_segment or ""]
        prompt = list[int]()
        at: str | None = call.prompt_segment
        while at is not None:
            prompt, at = [*segments[at].ids, *prompt], segments[at].parent_id
        wanted = answer(self._words, prompt)
        logprobs = [logprob(token) for token in wanted]
        said = self._language.renderer.written(completion.ids[:-1]).decode()
        return list(completion.ids) == wanted and list(completion.logprobs or ()) == logprobs and said == text

    def _calls(self, store: TraceStore) -> list[RecordedCall]:
        return store.read(lambda conn: calls.of_sessions(conn, self._sessions))

    @property
    def _sessions(self) -> list[str]:
        return [talker.session.session_id for talker in self.talkers]

    def prepare(self, conn: Connection) -> tuple[str, str]:
        """A run with a policy version, a worker and one rollout, to which all conversations belong."""
        run_id = runs.add(conn, "kills", {}, "kills", "training")
        policy_id, task_id = policies.register(conn, run_id, "policy"), runs.add_task(conn, "set", Task("t", "Talk."))
        start = PolicyVersion(0, None, "full", str(POLICY), 0, "", 0, committed=True, orphaned=False)
        policies.publish(conn, policy_id, start)
        workers.upsert(conn, WorkerRow("echo", run_id, KIND, json.dumps(self._words), 0, "ready"))
        rollouts.submit(conn, GroupSpec(run_id, task_id, policy_id, "train", 0, 0, {}, ("talkers",), "process", (0,)))
        return run_id, rollouts.claim(conn, run_id, "kills", 86_400.0, 1)[0].id


async def _further(talkers: list[Talker], talking: list["asyncio.Task[None]"], *, some: bool = False) -> None:
    """Wait until every conversation has another answer, or some one has."""
    before, deadline = [len(talker.got) for talker in talkers], time.monotonic() + _PATIENCE_S
    while True:
        more = [len(talker.got) > count for talker, count in zip(talkers, before, strict=True)]
        if all(more) or (some and any(more)):
            return
        for task in talking:
            if task.done():
                task.result()
        if time.monotonic() > deadline:
            raise RuntimeError(f"Not every conversation went on within {_PATIENCE_S:.0f} s: {more}.")
        await asyncio.sleep(0.005)


def schedule(kills: int, seed: int, *victims: str) -> list[str]:
    """So many kills of each victim, in random order."""
    order = list(victims) * kills
    random.Random(seed).shuffle(order)
    return order


def _on_sqlite(kills: int, seed: int) -> Report:
    folder = Path(tempfile.mkdtemp(prefix="harnessgym-kills-"))
    try:
        return asyncio.run(Campaign(f"sqlite:///{folder}/traces.db", seed).run(schedule(kills, seed, "proxy")))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _on_postgresql(kills: int, seed: int) -> Report:
    with Cluster() as cluster:
        campaign = Campaign(cluster.create_database(), seed, cluster)
        return asyncio.run(campaign.run(schedule(kills, seed, "proxy", "server")))


def main() -> None:
    """Kill, print, write. Exits with 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store.kills", description=__doc__.split("\n\n")[1])
    parser.add_argument("--kills", type=int, default=50, help="of each victim, on each database")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    options = parser.parse_args()
    problem = postgres_available()
    if options.only != "sqlite" and problem is not None:
        sys.exit(problem)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    campaigns = {"sqlite": _on_sqlite, "postgresql": _on_postgresql}
    reports = {name: run(options.kills, options.seed) for name, run in campaigns.items() if options.only in (None, name)}
    console = Console()
    console.print(_recoveries(reports, f"Kills, seed {options.seed}, {machine}"))
    console.print(_totals(reports))
    found = {name: {what: sorted(value) if isinstance(value, set) else value for what, value in vars(report).items()}
             for name, report in reports.items()}  # fmt: skip
    write_json(_OUT, {"seed": options.seed, "machine": machine, "databases": found})
    console.print(f"Written to {_OUT}.")
    sys.exit(not all(report.clean for report in reports.values()))


def _recoveries(reports: dict[str, Report], title: str) -> Table:
    table = Table("database", "killed", "kills", "next answer, s (median)", "(max)", title=title)
    for name, report in reports.items():
        for victim, times in report.recovery_s.items():
            middle, worst = statistics.median(times), max(times)
            table.add_row(name, victim, str(report.kills[victim]), f"{middle:.2f}", f"{worst:.2f}")
    return table


def _totals(reports: dict[str, Report]) -> Table:
    table = Table("database", "answered", "lost", "torn", "left", "half", "doubled", "findings", "told to come back")
    for name, report in reports.items():
        told = ", ".join(f"{what}: {count}" for what, count in sorted(report.refused.items()))
        lost, half, findings = len(report.lost), len(report.half), len(report.findings)
        sizes = (report.answered, lost, report.torn, report.left, half, report.doubled, findings)
        table.add_row(name, *map(str, sizes), told)
    return table


def _whole(call: RecordedCall) -> bool:
    if call.status in ("intent", "error"):
        return call.completion_segment is None and call.completion_len is None
    return call.status in FINISHED and call.completion_segment is not None


if __name__ == "__main__":
    main()
