"""Where the processor time of a rollout goes, process by process and stage by stage. `make bench NAME=line`.

Runs a short training run of the quickstart and reads /proc: processor seconds of every process of the run,
and of everything the node started (fork servers and harnesses), between the first and the last training
rollout, divided by the rollouts in between. The row of sandboxes and harnesses is the bound: it is the
agents' own work, which no training system can take away.
"""

import argparse
import json
import os
import platform
import shutil
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, select

from harnessgym.config import load_config
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import write_json
from harnessgym.store import runs
from harnessgym.store.tables import calls, rollouts
from harnessgym.supervisor import Supervisor, prepare, start_run

_TICK = os.sysconf("SC_CLK_TCK")
_ROOT = Path("runs/bench-line")


@dataclass
class Meter:
    """Looks at /proc while a run trains."""

    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
    times: tuple[float, float] = (0.0, 0.0)
    _next: float = 0.0

    def __call__(self, supervisor: Supervisor) -> None:
        """Take a reading, if training has begun and half a second has passed."""
        if time.monotonic() < self._next or supervisor.status != "training":
            return
        self._next = time.monotonic() + 0.5
        done = supervisor.store.read(lambda conn: runs.finished_rollouts(conn, supervisor.run_id))
        if done < 32:  # fork servers have started, engines are warm
            return
        reading = {name: _own(child.process.pid) for name, child in supervisor.children.by_name.items()}
        reading["sandboxes and harnesses"] = _below(supervisor.children.by_name["node"].process.pid)
        reading["supervisor"] = _own(os.getpid())
        if not self.first:
            self.first, self.span, self.times = reading, (done, done), (time.monotonic(), time.monotonic())
        self.last, self.span, self.times = reading, (self.span[0], done), (self.times[0], time.monotonic())

    def per_rollout_ms(self) -> dict[str, float]:
        """Processor milliseconds per rollout by process."""
        number = self.span[1] - self.span[0]
        return {
            name: 1000 * (self.last[name] - begun) / number
            for name, begun in self.first.items()
            if name in self.last
        }


def main() -> None:
    """Run, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    shutil.rmtree(_ROOT, ignore_errors=True)
    settings = ["--trainer.steps", str(options.steps), "--evaluation.tasks", "0"]
    config = load_config(RunConfig, Path("examples/quickstart.toml"), settings)
    folder = prepare(config, _ROOT)
    start_run(folder, config)
    meter, supervisor = Meter(), Supervisor(folder)
    try:
        supervisor.serve(meter)
        stages = supervisor.store.read(_stages)
    finally:
        supervisor.close()
    cpu = meter.per_rollout_ms()
    seconds = meter.times[1] - meter.times[0]
    rate = (meter.span[1] - meter.span[0]) / seconds
    console = Console()
    console.print(_table("processor time per rollout (3 calls)", "ms", cpu))
    console.print(_table("wall time by stage, median", "ms", stages))
    busy = sum(cpu.values()) / 1000 * rate / (os.cpu_count() or 1)
    console.print(
        f"{rate:.1f} rollouts/s; {100 * busy:.0f} % of {os.cpu_count()} cores busy with the run",
        highlight=False,
    )
    sandbox = json.loads((folder.root / "sandbox.json").read_text())
    facts = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "sandbox": sandbox,
        "rollouts_per_s": round(rate, 2),
    }
    write_json(
        Path("benchmarks/out/line.json"), {**facts, "cpu_ms_per_rollout": cpu, "wall_ms_median": stages}
    )


def _table(title: str, unit: str, values: dict[str, float]) -> Table:
    table = Table("where", unit, "share", title=title, title_justify="left")
    for name, value in sorted(values.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{value:.1f}", f"{100 * value / sum(values.values()):.0f} %")
    return table


def _stages(conn: Connection) -> dict[str, float]:
    """Median wall milliseconds of the pipeline's stages and of a call's parts."""
    seen: dict[str, list[float]] = defaultdict(list)
    for column, prefix in ((rollouts.c.latencies, "rollout: "), (calls.c.timings, "call: ")):
        for (entry,) in conn.execute(select(column).where(column.is_not(None))):
            for name, seconds in (entry or {}).items():
                seen[prefix + name].append(1000 * float(seconds))
    return {name: sorted(values)[len(values) // 2] for name, values in seen.items()}


def _own(pid: int) -> float:
    """Processor seconds of a process itself."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICK if fields else 0.0


def _below(pid: int) -> float:
    """Processor seconds of all descendants, those that have ended and were waited for included."""
    total = 0.0
    for child in _children(pid):
        fields: Any = _stat(child)
        if fields:
            total += sum(int(value) for value in fields[11:15]) / _TICK + _below(child)
    return total


def _children(pid: int) -> list[int]:
    out: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            out += [int(word) for word in path.read_text().split()]
        except OSError:
            continue
    return out


def _stat(pid: int) -> list[bytes] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


if __name__ == "__main__":
    main()
