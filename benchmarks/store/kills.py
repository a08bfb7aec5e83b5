"""Kills of a proxy that writes, and of its database: `python -m benchmarks.store.kills [--kills 50] [--seed
0]`.

A real proxy process stores the calls of eight conversations. At seeded moments it gets SIGKILL, or the
PostgreSQL server gets SIGQUIT, which ends it as a crash does. After each kill the store is read: every call
that a client was answered must be there with its exact tokens, every other one with its whole outcome or
none; the file must be sound and `traces verify` without findings. Then the conversations go on, and a call
that was torn must be taken up, not made twice. Prints tables, writes benchmarks/out/kills.json.
"""

import argparse
import asyncio
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

from harnessgym.proxy_client import ControlClient
from harnessgym.run_folder import write_json
from harnessgym.store import TraceStore
from harnessgym.store.calls import FINISHED
from tests.support.conversations import KEY, Conversations, ProxyProcess, Talker
from tests.support.postgres import PostgresServer, postgres_available

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
    cluster: PostgresServer | None = None
    """Its server, if that may be ended."""
    report: Report = field(default_factory=Report)
    conversations: Conversations = field(init=False)
    """Those of the latest kill. What their checks find goes into the report's sets."""

    def __post_init__(self) -> None:
        found = self.report
        self.conversations = Conversations(
            self.url, lost=found.lost, half=found.half, findings=found.findings
        )

    async def run(self, victims: Sequence[str]) -> Report:
        """Kill `proxy` or `server` in turn. Raises `RuntimeError` if the conversations stop."""
        draw = random.Random(self.seed)
        with TraceStore.create(self.url) as store:
            run_id, rollout_id = store.write(self.conversations.prepare)
            with ProxyProcess(self.url, run_id) as proxy:
                async with httpx.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http:
                    for victim in victims:
                        await self._round(store, proxy, http, rollout_id, victim, draw)
        return self.report

    async def _round(
        self,
        store: TraceStore,
        proxy: ProxyProcess,
        http: httpx.AsyncClient,
        rollout_id: str,
        victim: str,
        draw: random.Random,
    ) -> None:
        """Talk, kill, look, go on, seal, look again."""
        async with ControlClient(proxy.control_url, KEY, retry_s=_PATIENCE_S) as control:
            opened = [await control.open_session(rollout_id) for _ in range(_TALKERS)]
            talkers = [Talker(http, proxy.url, session) for session in opened]
            self.conversations.talkers = talkers
            enough = asyncio.Event()
            talking = [asyncio.create_task(talker.talk(enough)) for talker in talkers]
            try:
                await _further(talkers, talking)
                await asyncio.sleep(draw.uniform(0.0, _LONGEST_S))
                began = time.monotonic()
                began += await self._kill(store, proxy, victim)
                await _further(talkers, talking, some=True)
                self.report.recovery_s.setdefault(victim, []).append(time.monotonic() - began)
                await _further(talkers, talking)
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
        self.report.torn += sum(call.status == "intent" for call in self.conversations.calls(store))
        self.conversations.check(store)
        looked = time.monotonic() - began
        proxy.start()
        return looked

    def _end_round(self, store: TraceStore, victim: str) -> None:
        """Look when every conversation has ended."""
        self.conversations.check(store)
        answered = {item.call_id for talker in self.conversations.talkers for item in talker.got}
        found = self.conversations.calls(store)
        finished = {call.id for call in found if call.status in FINISHED}
        self.report.left += sum(call.status == "intent" for call in found)
        self.report.kills[victim] += 1
        self.report.answered += len(answered)
        self.report.doubled += len(finished - answered)
        for talker in self.conversations.talkers:
            self.report.refused.update(talker.refused)


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
        return asyncio.run(
            Campaign(f"sqlite:///{folder}/traces.db", seed).run(schedule(kills, seed, "proxy"))
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _on_postgresql(kills: int, seed: int) -> Report:
    with PostgresServer() as cluster:
        campaign = Campaign(cluster.create_database(), seed, cluster)
        return asyncio.run(campaign.run(schedule(kills, seed, "proxy", "server")))


def main() -> None:
    """Kill, print, write. Exits with 1 if anything was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store.kills", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("--kills", type=int, default=50, help="of each victim, on each database")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    options = parser.parse_args()
    problem = postgres_available()
    if options.only != "sqlite" and problem is not None:
        sys.exit(problem)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    campaigns = {"sqlite": _on_sqlite, "postgresql": _on_postgresql}
    reports = {
        name: run(options.kills, options.seed)
        for name, run in campaigns.items()
        if options.only in (None, name)
    }
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
    table = Table(
        "database", "answered", "lost", "torn", "left", "half", "doubled", "findings", "told to come back"
    )
    for name, report in reports.items():
        told = ", ".join(f"{what}: {count}" for what, count in sorted(report.refused.items()))
        lost, half, findings = len(report.lost), len(report.half), len(report.findings)
        sizes = (report.answered, lost, report.torn, report.left, half, report.doubled, findings)
        table.add_row(name, *map(str, sizes), told)
    return table


if __name__ == "__main__":
    main()
