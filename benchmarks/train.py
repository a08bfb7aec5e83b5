"""Step time and peak memory of our update and of TRL's `GRPOTrainer`, on the same rows and model.

    python -m benchmarks.train [--model FOLDER] [--steps 2] [--seeds 0,1,2] [--plot FILE] [--fresh]

Cases: `shared` (8 rollouts of one 512-token prompt, 64 sampled tokens each), `equal` (the same lengths, but
nothing is shared) and `mixed` (8 rollouts whose prompts and answers have lognormal lengths, nothing shared).
`ours` is the native policy, `ours, transformers` the same weights as a model of transformers.
Each arm runs in a process of its own, in float32, with the torch threads of `OMP_NUM_THREADS`: one warm-up
step, then `--steps` that are measured. Rows, advantages, loss (clipped, mean over tokens), AdamW and the norm
of clipping are the same; `grad_norm` shows it. TRL gets the rows by `rollout_func`, which returns at once; it
runs without gradient checkpointing and with it (its default): the target is judged against what is faster on
a seed. On CPUs TRL projects every position to the vocabulary, on GPUs the scored ones only, so that these
factors are of CPUs. Rows are cut from the project's own guides. The model is SmolLM2-135M-Instruct where it
has been fetched (`python -m tests.support.vllm_cpu`), else one of its shape at random with fewer layers.
Finished cells are kept in `runs/bench-train`, so that an interrupted run goes on. Prints a table with the
targets, writes `benchmarks/out/train.json`, and exits with 1 if a target is missed.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.picture import picture
from benchmarks.training.cases import CASES, model_folder, text_digest
from harnessgym.run_folder import write_json

_ROOT = Path("runs/bench-train")
NATIVE, OURS_TRANSFORMERS = "ours", "ours, transformers"
_OURS = (NATIVE, OURS_TRANSFORMERS)
ARMS = (*_OURS, "trl", "trl, checkpointing")
WANTED = {"shared": 3.0, "equal": 1.3, "mixed": 1.3}
"""By case: how many times TRL's speed ours is to be at least."""
SLOWER = 1.25
"""At most how many times the native policy's step a step of the same model through transformers takes."""


def main() -> None:
    """Measure what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="Hugging Face folder")
    parser.add_argument("--steps", type=int, default=2, help="measured steps of an arm")
    parser.add_argument("--seeds", default="0,1,2", help="of the rows")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--arms", default="; ".join(ARMS), help="separated by ;")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/train.json"), help="the figures")
    parser.add_argument("--plot", type=Path, help="also draw the step times, as PNG")
    parser.add_argument("--fresh", action="store_true", help="forget finished cells")
    options = parser.parse_args()
    if options.fresh:
        (_ROOT / "cells.json").unlink(missing_ok=True)
    folder = options.model or model_folder(_ROOT)
    cells: dict[str, Any] = json.loads(path.read_text()) if (path := _ROOT / "cells.json").exists() else {}
    wanted = [
        (case, arm.strip(), int(seed))
        for seed in options.seeds.split(",")
        for case in options.cases.split(",")
        for arm in options.arms.split(";")
    ]
    for number, (case, arm, seed) in enumerate(wanted, 1):
        key = _key(case, arm, seed, folder, options.steps)
        if key not in cells:
            cells[key] = {"case": case, "arm": arm, "seed": seed} | _measured(
                case, arm, seed, folder, options.steps
            )
            write_json(path, cells)
        found = cells[key]
        print(f"[{number}/{len(wanted)}] {case}, {arm}, seed {seed}: {found['step_s']:.2f} s, "
              f"{found['peak_mib']:.0f} MiB, gradient {found['grad_norm']:.4g}", flush=True)  # fmt: skip
    chosen = [cells[_key(case, arm, seed, folder, options.steps)] for case, arm, seed in wanted]
    rows = _report(chosen, folder.name, options.out)
    if options.plot:
        _draw(rows, options.plot)
    sys.exit(int(not all(row.get("met", True) for row in rows)))


def _key(case: str, arm: str, seed: int, folder: Path, steps: int) -> str:
    """Of a cell: all that its figures depend on."""
    return f"{case} | {arm} | {seed} | {folder} | {steps} steps | {_threads()} threads | text {text_digest()}"


def _threads() -> str:
    return os.environ.get("OMP_NUM_THREADS", "all")


def _measured(case: str, arm: str, seed: int, folder: Path, steps: int) -> dict[str, Any]:
    """One cell, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.training.arm", case, arm, str(seed), str(folder), str(steps)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _report(cells: list[dict[str, Any]], model: str, out: Path) -> list[dict[str, Any]]:
    """Print and write what was measured. Returns a row for each case and arm; `met` says whether it
    reached its target.
    """
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {_threads()} threads"
    titles = (
        "case",
        "arm",
        "step, s",
        "(range of seeds)",
        "peak, MiB",
        "gradient norm",
        "times TRL's speed (range)",
        "wanted",
        "",
    )
    table = Table(*titles, title=f"One update of 8 rollouts, {model}, {machine}: median times, largest peaks")
    rows = []
    for case in dict.fromkeys(cell["case"] for cell in cells):
        theirs = [cell for cell in cells if cell["case"] == case and cell["arm"] not in _OURS]
        base = {
            cell["seed"]: min(other["step_s"] for other in theirs if other["seed"] == cell["seed"])
            for cell in theirs
        }
        for arm in dict.fromkeys(cell["arm"] for cell in cells if cell["case"] == case):
            own = [cell for cell in cells if (cell["case"], cell["arm"]) == (case, arm)]
            times = [cell["step_s"] for cell in own]
            gains = [base[cell["seed"]] / cell["step_s"] for cell in own if cell["seed"] in base]
            row = {
                "case": case,
                "arm": arm,
                "step_s": statistics.median(times),
                "step_s_by_seed": times,
                "peak_mib": max(cell["peak_mib"] for cell in own),
                "grad_norm": own[0]["grad_norm"],
                "gain": statistics.median(gains) if gains else None,
                "gain_by_seed": gains,
            }
            judged = arm in _OURS and row["gain"] is not None
            row |= {"wanted": WANTED[case], "met": row["gain"] >= WANTED[case]} if judged else {}
            if arm == OURS_TRANSFORMERS:
                beside = _beside_native(case, row["step_s"], cells)
                row |= beside | {"met": row.get("met", True) and beside.get("met", True)}
            rows.append(row)
            gain = f"{row['gain']:.2f} ({min(gains):.2f} to {max(gains):.2f})" if gains else "-"
            verdict = ("met" if row["met"] else "missed") if judged else ""
            if "times_native" in row:
                verdict += f" ({row['times_native']:.2f} of native's time, at most {SLOWER:g} wanted)"
            table.add_row(case, arm, f"{row['step_s']:.2f}", f"{min(times):.2f} to {max(times):.2f}", f"{row['peak_mib']:.0f}",
                          f"{row['grad_norm']:.4g}", gain, f"{WANTED[case]:g}" if judged else "", verdict)  # fmt: skip
    Console(width=max(140, Console().width)).print(table)
    write_json(out, {"model": model, "machine": machine, "rows": rows, "cells": cells})
    return rows


def _beside_native(case: str, step_s: float, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times the native policy's step a step through transformers takes; nothing if that did not
    run.
    """
    native = [cell["step_s"] for cell in cells if (cell["case"], cell["arm"]) == (case, NATIVE)]
    if not native:
        return {}
    times = step_s / statistics.median(native)
    return {"times_native": times, "met": times <= SLOWER}


def _draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Step times and peaks of memory, case by case, as PNG."""
    cases, arms = ([*dict.fromkeys(row[name] for row in rows)] for name in ("case", "arm"))
    with picture(path, columns=2, size=(11, 4)) as (_, (axes,)):
        for axis, name, title in zip(
            axes, ("step_s", "peak_mib"), ("seconds per step", "peak of a step, MiB"), strict=True
        ):
            for number, arm in enumerate(arms):
                found = {row["case"]: row for row in rows if row["arm"] == arm}
                places = [cases.index(case) + 0.27 * (number - (len(arms) - 1) / 2) for case in found]
                bars = axis.bar(places, [row[name] for row in found.values()], width=0.25, label=arm)
                if arm in _OURS and name == "step_s":
                    axis.bar_label(bars, [f"{row['gain'] or 0:.1f} x" for row in found.values()], fontsize=9)
            axis.set(title=title)
            axis.set_xticks(range(len(cases)), cases)
            axis.grid(alpha=0.3, axis="y")
        axes[0].legend(fontsize=8)


if __name__ == "__main__":
    main()
