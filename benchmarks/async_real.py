"""The quickstart with slow tools, asynchronous against synchronous: `make bench NAME=async-real`.

    python -m benchmarks.async_real [--quick] [--seeds 3] [--steps 24] [--only slow|fast] [--fresh] [--plot
    FILE]

Real runs of `examples/quickstart.toml` with η = 4 and η = 0: once with tools that sleep (lognormal, drawn
from each rollout's seed, so both arms meet the same draws), once without. There are places for a whole batch:
synchronous training starts all of it at once. What counts is the time until the moving mean of the training
reward reaches a level that every run reaches, and the time for the same number of steps; both from the start
of the first rollout. Finished runs are kept in `runs/bench-async-real`, so an interrupted benchmark goes on.
Writes `benchmarks/out/async-real.json`. Exit status 1 if the target is missed.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from benchmarks.picture import picture
from harnessgym.metrics.lines import StepLines
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore
from harnessgym.supervisor.progress import read_metrics

_ROOT = Path("runs/bench-async-real")
_OUT = Path("benchmarks/out/async-real.json")
_EXAMPLE = Path("examples/quickstart.toml")
_TARGET = 1.3
_LEVEL = 0.6
_MEAN_OF = 4
"""Steps that a moving mean is taken of."""
_SYNCHRONOUS, _ASYNCHRONOUS = 0, 4


@dataclass(frozen=True, slots=True)
class Arm:
    """One run."""

    eta: int
    delay: str
    """MEDIAN:SIGMA in seconds; empty for tools that answer at once."""
    seed: int
    steps: int
    places: int

    @property
    def tools(self) -> str:
        """What the tables call it."""
        return "slow" if self.delay else "fast"

    @property
    def name(self) -> str:
        """Of its folder and its result."""
        return f"{self.tools}-eta-{self.eta}-seed-{self.seed}-{self.steps}-steps"


def main() -> None:
    """Run what is left of the arms, then report."""
    options = _options()
    if options.fresh:
        shutil.rmtree(_ROOT, ignore_errors=True)
    arms, console = _arms(options), Console(width=max(140, Console().width))
    results: list[dict[str, Any]] = []
    for number, arm in enumerate(arms):
        console.print(f"[{number + 1}/{len(arms)}] {arm.name}: {_left(results, len(arms))}")
        results.append(_kept(arm))
        console.print(f"  {_report_line(results[-1])}")
    pairs = compare(results)
    console.print(_table(results), _verdicts(pairs))
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    out = {"machine": machine, "quick": options.quick, "mean_of": _MEAN_OF, "pairs": pairs, "runs": results}
    write_json(_OUT, out)
    console.print(f"Machine: {machine}. Written to {_OUT}.")
    if options.plot:
        _draw(results, pairs, options.plot)
    missed = any(pair["tools"] == "slow" and not _met(pair) for pair in pairs)
    sys.exit(int(missed and not options.quick))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.async_real", description=(__doc__ or "").split("\n\n")[2]
    )
    parser.add_argument("--quick", action="store_true", help="one seed, three steps, slow tools only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--median", type=float, default=0.3, help="of a tool's seconds")
    parser.add_argument("--sigma", type=float, default=1.0, help="standard deviation of their logarithm")
    parser.add_argument(
        "--places", type=int, default=64, help="harnesses at one time; a batch has 64 rollouts"
    )
    parser.add_argument("--only", choices=("slow", "fast"))
    parser.add_argument("--fresh", action="store_true", help="forget finished runs")
    parser.add_argument("--plot", type=Path, help="also draw the curves, as PNG")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps, options.only = 1, min(options.steps, 3), options.only or "slow"
    return options


def _arms(options: argparse.Namespace) -> list[Arm]:
    """Arms in turn, so that whatever the machine does besides meets all of them."""
    delays = [delay for tools, delay in (("slow", f"{options.median:g}:{options.sigma:g}"), ("fast", ""))
              if options.only in (None, tools)]  # fmt: skip
    order = product(range(options.seeds), delays, (_SYNCHRONOUS, _ASYNCHRONOUS))
    return [Arm(eta, delay, seed, options.steps, options.places) for seed, delay, eta in order]


def _kept(arm: Arm) -> dict[str, Any]:
    """The result of a run: an earlier one's if there is one of the same settings. A run that was cut off
    begins again.
    """
    path = _ROOT / "results" / f"{arm.name}.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if found["arm"] == asdict(arm):
            return found
    folder = _ROOT / arm.name
    shutil.rmtree(folder, ignore_errors=True)
    config = _ROOT / f"{arm.name}.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(run_file(arm))
    settings = {
        "seed": arm.seed,
        "trainer.max_staleness": arm.eta,
        "trainer.steps": arm.steps,
        "node.max_running": arm.places,
        "evaluation.tasks": 0,
    }
    overrides = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    before, began = os.getloadavg()[0], time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "harnessgym", "train", str(config), "--folder", str(folder), *overrides],
        check=True,
    )
    took = {"wall_s": time.monotonic() - began, "load_before": before}
    result = {"arm": asdict(arm), "tools": arm.tools, **took, **measure(RunFolder(folder))}
    write_json(path, result)
    shutil.rmtree(folder)
    return result


def run_file(arm: Arm) -> str:
    """The quickstart's run file, its agents told how slow their tools are."""
    found = _EXAMPLE.read_text()
    return (
        found.replace('.py"]', f'.py", "--delay", "{arm.delay}", "--seed", "{{seed}}"]')
        if arm.delay
        else found
    )


def measure(folder: RunFolder) -> dict[str, Any]:
    """What a finished run says. Times are seconds from the start of its first rollout."""
    lines = [line for line in read_metrics(folder) if line["step"] > 0]
    with TraceStore.open(folder.store_url()) as store:
        began, calls, rollouts = store.read(lambda conn: conn.execute(text(_FIGURES)).one())
        staleness = store.read(lambda conn: conn.execute(text(_STALENESS)).all())
    observed = StepLines(folder.observed_path).read()
    busy = [value for line in observed for name, value in line.items() if name.startswith("busy/engine-")]
    waited, worked = (sum(line[name] for line in lines) for name in ("wait_s", "step_s"))
    tokens = sum(count for _, count in staleness)
    return {
        "times_s": [line["time"] - began for line in lines],
        "rewards": [line["reward"] for line in lines],
        "trainer_waits": waited / (waited + worked),
        "engines_busy": statistics.mean(busy) if busy else None,
        "rollouts": rollouts,
        "calls": calls,
        "mean_staleness": sum(lag * count for lag, count in staleness) / tokens,
        "max_staleness": max(lag for lag, _ in staleness),
    }


def moving_mean(rewards: Sequence[float], width: int = _MEAN_OF) -> list[float]:
    """Of the last `width` steps, or of as many as there are."""
    return [statistics.mean(rewards[max(0, end - width) : end]) for end in range(1, len(rewards) + 1)]


def common_level(results: Iterable[dict[str, Any]]) -> float | None:
    """The level that times are taken to: 0.6, or the highest multiple of 0.05 below it that every run
    reaches.

    None if a run has fewer steps than a moving mean.
    """
    best = min(max(moving_mean(result["rewards"])[_MEAN_OF - 1 :], default=-1.0) for result in results)
    return None if best < 0 else min(_LEVEL, int(best / 0.05 + 1e-9) * 0.05)


def reached(result: dict[str, Any], level: float) -> float:
    """Seconds until the moving mean of whole windows is at the level."""
    means = moving_mean(result["rewards"])
    places = [place for place in range(_MEAN_OF - 1, len(means)) if means[place] >= level - 1e-9]
    return float(result["times_s"][places[0] if places else -1])


def compare(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Synchronous over asynchronous, seed by seed, for each kind of tools."""
    out = []
    for tools in dict.fromkeys(result["tools"] for result in results):
        found = {
            (each["arm"]["seed"], each["arm"]["eta"]): each for each in results if each["tools"] == tools
        }
        level = common_level(found.values())
        seeds = sorted({seed for seed, _ in found})
        both = [(found[seed, _SYNCHRONOUS], found[seed, _ASYNCHRONOUS]) for seed in seeds]
        all_steps = [one["times_s"][-1] / other["times_s"][-1] for one, other in both]
        pair = {"tools": tools, "level": level, "times_all_steps": _spread(all_steps), "times_to_level": None}
        if level is not None:
            pair["times_to_level"] = _spread(
                [reached(one, level) / reached(other, level) for one, other in both]
            )
        out.append(pair)
    return out


_FIGURES = (
    "SELECT min(started_at), (SELECT count(*) FROM calls), count(*) FROM rollouts WHERE status = 'finished'"
)
_STALENESS = "SELECT max_staleness, sum(tokens) FROM trained GROUP BY max_staleness"


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _left(results: Sequence[dict[str, Any]], total: int) -> str:
    if not results:
        return f"{total} runs"
    return f"about {(total - len(results)) * statistics.mean(each['wall_s'] for each in results) / 60:.0f} minutes left"


def _report_line(result: dict[str, Any]) -> str:
    means, times = moving_mean(result["rewards"]), result["times_s"]
    return (
        f"{len(times)} steps in {times[-1]:.0f} s, reward {means[-1]:.2f}, trainer waits "
        f"{result['trainer_waits']:.0%}, staleness {result['mean_staleness']:.2f} (at most "
        f"{result['max_staleness']})"
    )


def _table(results: Sequence[dict[str, Any]]) -> Table:
    delay = next((each["arm"]["delay"] for each in results if each["arm"]["delay"]), "")
    table = Table("tools", "η", "seed", "to the level, s", "all steps, s", "last reward", "rollouts/s", "trainer waits",
                  "engines busy", "staleness", title=f"Slow tools sleep: lognormal, median and sigma {delay} "
                                                     "s")  # fmt: skip
    levels = {pair["tools"]: pair["level"] for pair in compare(results)}
    for each in results:
        busy, last, level = each["engines_busy"], each["times_s"][-1], levels[each["tools"]]
        table.add_row(
            each["tools"], str(each["arm"]["eta"]), str(each["arm"]["seed"]),
            "-" if level is None else f"{reached(each, level):.0f} ({level:.2f})", f"{last:.0f}",
            f"{moving_mean(each['rewards'])[-1]:.2f}", f"{each['rollouts'] / last:.1f}", f"{each['trainer_waits']:.0%}",
            "-" if busy is None else f"{busy:.0%}", f"{each['mean_staleness']:.2f} (≤ "
                                                    f"{each['max_staleness']})",
        )  # fmt: skip
    return table


def _verdicts(pairs: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        "tools", "level", "η = 4 reaches it sooner, times", "η = 4 ends sooner, times", f"target ≥ {_TARGET}"
    )
    for pair in pairs:
        to_level, all_steps = (_spanned(pair[name]) for name in ("times_to_level", "times_all_steps"))
        level, verdict = pair["level"], "-" if pair["tools"] == "fast" else "met" if _met(pair) else "missed"
        table.add_row(pair["tools"], "-" if level is None else f"{level:.2f}", to_level, all_steps, verdict)
    return table


def _met(pair: dict[str, Any]) -> bool:
    return bool(pair["times_to_level"] and pair["times_to_level"]["median"] >= _TARGET)


def _spanned(spread: dict[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['median']:.2f} [{spread['low']:.2f}, {spread['high']:.2f}]"


def _draw(results: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]], path: Path) -> None:
    with picture(path, columns=len(pairs), size=(6 * len(pairs), 4)) as (_, all_axes):
        for axes, pair in zip(all_axes[0], pairs, strict=True):
            for each in (each for each in results if each["tools"] == pair["tools"]):
                eta = each["arm"]["eta"]
                axes.plot(each["times_s"], moving_mean(each["rewards"]), color="#c44" if eta == 0 else "#4878a8",
                          label=f"η = {eta}" if each["arm"]["seed"] == 0 else None)  # fmt: skip
            axes.axhline(pair["level"] or 0, linestyle=":", color="#888")
            axes.set(
                xlabel="seconds",
                ylabel=f"training reward, mean of {_MEAN_OF} steps",
                title=f"{pair['tools']} tools",
            )
            axes.grid(alpha=0.3)
            axes.legend(loc="lower right")


if __name__ == "__main__":
    main()
