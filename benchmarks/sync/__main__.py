"""What deltas of policy versions save: `make bench NAME=sync`, or `python -m benchmarks.sync [--quick]
[--plot FILE]`.

Real AdamW steps on real weights, cast to bfloat16 and published after each: the share rho of elements that
changed, bytes in full, raw and coded beside the entropy bound, what encoding and installing cost, and how
long a version takes over a throttled loopback. Every delta is installed and compared bit by bit. Prints
tables, writes benchmarks/out/sync.json.
"""

import argparse
import os
import platform
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.sync import deltas, transfer
from benchmarks.sync.deltas import Step
from benchmarks.sync.models import Model, models, steps
from harnessgym.run_folder import write_json
from trainers.weights.publish import publish_full

_OUT = Path("benchmarks/out/sync.json")
_RATES = (1e-6, 3e-6, 1e-5)


def main() -> None:
    """Measure, print, write. Ends with an error if any delta does not make the very bits that were
    published.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sync", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument(
        "--quick", action="store_true", help="the shipped policy only, few steps; times are no verdict"
    )
    parser.add_argument("--steps", type=int, default=8, help="steps of each run")
    parser.add_argument("--plot", type=Path, help="also draw what deltas save, as PNG")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console, out = Console(width=160), list[dict[str, Any]]()
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    for model in models(quick=options.quick):
        for lr in _RATES:
            with tempfile.TemporaryDirectory() as folder:
                found = _train(
                    model, lr, min(options.steps, 3) if options.quick else options.steps, Path(folder)
                )
            out.append(found | {"load": os.getloadavg()[0]})
            write_json(_OUT, {"machine": machine, "quick": options.quick, "runs": out})
            console.print(_table(found))
            if found["transfer"]:
                console.print(_transfers(found))
    if options.plot:
        from benchmarks.sync.plot import draw

        draw(out, options.plot)
    console.print(f"Machine: {machine}. Every delta gave the published bits. Written to {_OUT}.")


def _train(model: Model, lr: float, count: int, root: Path) -> dict[str, Any]:
    """Figures of each step of one run; of its last step also those of transfers, at the middle learning
    rate.
    """
    found, old, coded = list[Step](), None, {}
    moved: list[dict[str, Any]] = []
    for number, weights in enumerate(steps(model, lr, count)):
        if old is None:
            publish_full(root, 0, None, weights, 0, "bench")
        else:
            found.append(deltas.measure(number, old, weights, root))
            shutil.rmtree(root / "full")
            if number == count:
                coded = deltas.codings(old, weights)
                if lr == _RATES[1]:
                    moved = list(transfer.measure(old, weights, root, transfer.MBIT_S))
        old = weights
    pairs = zip(moved[::2], moved[1::2], strict=True)
    return {
        "model": model.name,
        "lr": lr,
        "steps": [asdict(step) | {"scanned_gb_s": step.scanned_gb_s} for step in found],
        "codings_of_last_step": coded,
        "transfer": moved,
        "break_even_mbit_s": [transfer.break_even_mbit_s(full, delta) for full, delta in pairs],
    }


def _table(found: dict[str, Any]) -> Table:
    table = Table(
        "step", "rho", "full MB", "raw MB", "coded MB", "bound MB", "full / coded", "encode ms", "decode ms", "scanned GB/s",
        "publish ms", "(full)", "install ms", "(full)", title=f"{found['model']}, lr {found['lr']:g}, "
                                                              "bfloat16",
    )  # fmt: skip
    rows = found["steps"]
    last = {key: median(row[key] for row in rows) for key in rows[0]} | {"step": "median"}
    for row in [*rows, last]:
        table.add_row(
            str(row["step"]),
            f"{row['rho']:.3%}",
            *(f"{row[key] / 1e6:.3f}" for key in ("bytes_full", "bytes_raw", "bytes_coded", "bytes_bound")),
            f"{row['bytes_full'] / max(row['bytes_coded'], 1):.1f}x",
            *(f"{1e3 * row[key]:.1f}" for key in ("encode_s", "decode_s")),
            f"{row['scanned_gb_s']:.2f}",
            *(
                f"{1e3 * row[key]:.0f}"
                for key in ("publish_s", "publish_full_s", "install_s", "install_full_s")
            ),
        )
    return table


def _transfers(found: dict[str, Any]) -> Table:
    rho = found["steps"][-1]["rho"]
    title = f"{found['model']}, lr {found['lr']:g}, rho {rho:.3%}: trainer to verified weights over a throttled loopback"
    table = Table(
        "Mbit/s", "kind", "MB", "publish s", "fetch s", "install s", "total s", "full / delta", title=title
    )
    for full, delta in zip(found["transfer"][::2], found["transfer"][1::2], strict=True):
        for row in (full, delta):
            gain = f"{full['total_s'] / delta['total_s']:.1f}x" if row is delta else ""
            times = (f"{row[key]:.2f}" for key in ("publish_s", "fetch_s", "install_s", "total_s"))
            table.add_row(f"{row['mbit_s']:,}", row["kind"], f"{row['bytes'] / 1e6:.2f}", *times, gain)
    rates = ("none" if rate is None else f"{rate:,.0f} Mbit/s" for rate in found["break_even_mbit_s"])
    table.caption = f"Break-even of each pair, from publishing and installing (none: a delta is sooner at any rate): {', '.join(rates)}"
    return table


if __name__ == "__main__":
    main()
