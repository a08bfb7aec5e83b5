"""A real model learns: SmolLM2-135M-Instruct as the policy of mini-swe-agent. `make bench NAME=smollm2`.

    python -m benchmarks.smollm2 [--quick] [--seeds 3] [--steps N] [--no-control] [--vllm] [--plot FILE] [--fresh]

Each run is `harnessgym train benchmarks/smollm2.toml`, then `harnessgym eval` of the weights it began with
and of its last, on the same 256 held-out tasks with the same sampling seeds. The control permutes the rewards
of every batch among its rollouts: same tasks, same code, nothing to learn. The agent is installed and
unmodified; what is particular about it stands in its own configuration file, inside the run file. The two
shots are turns in the policy's chat template: shots that a user's message quotes are worth little to a model
this small, and the proxy never lets a message write turns.

With `--vllm` the policy is trained by what transformers computes and sampled by vLLM's CPU build instead of
the run's own engine: another arm for each seed.

Interrupted, the same command goes on where it stopped. Writes `benchmarks/out/smollm2.json`. Exit status 1
unless the 95 % interval of every seed's gain lies above 0, and that of the control does not: no improvement
is shown otherwise, and it says so.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from benchmarks.picture import picture
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore
from harnessgym.supervisor.progress import read_metrics
from tests.support import vllm_cpu

ROOT = Path("runs/bench-smollm2")
RUN_FILE = Path("benchmarks/smollm2.toml")
_OUT = Path("benchmarks/out/smollm2.json")
_HELD_OUT = 256
_VLLM = "http://127.0.0.1:8765"
"""Where vLLM serves, the same when a run goes on."""
_QUICK_TASKS = 8
_QUICK = {"trainer.steps": 2, "trainer.groups_per_step": 2, "trainer.group_size": 2}
START = (0.15, 0.40)
"""Where the success before training should lie: with less there is little to learn from, with more little
to learn."""
SHOTS = (
    ("Rename the file letter.txt to note.txt.", "mv letter.txt note.txt"),
    ("Delete the file story.txt.", "rm story.txt"),
)
_TEMPLATE = """\
{{%- for message in messages -%}}
{{{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}}}
{{%- if loop.first -%}}{{{{- {shots} -}}}}{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '<|im_start|>assistant\\n' -}}}}{{%- endif -%}}
"""


def main() -> None:
    """Prepare, train, evaluate, report; whatever is done already is kept."""
    options, console = _options(), Console(width=max(160, Console().width))
    root = ROOT / "quick" if options.quick else ROOT
    kind = ", transformers and vLLM" if options.vllm else ""
    arms = [
        Arm(f"seed {seed}{kind}", seed, shuffled=False)
        for seed in range(1 if options.quick else options.seeds)
    ]
    if not options.no_control:
        arms.append(Arm("shuffled rewards, seed 0", 0, shuffled=True))
    console.print("Preparing SmolLM2 and mini-swe-agent: minutes the first time.")
    prepare(ROOT / "policy")
    _call("install", "mini_swe_agent")
    results: dict[str, dict[str, Any]] = {}
    machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()}
    for place, arm in enumerate(arms, 1):
        folder = root / arm.folder
        if options.fresh:
            shutil.rmtree(folder, ignore_errors=True)
        console.print(f"[{place}/{len(arms)}] {arm.name}, in {folder}.", highlight=False)
        results[arm.name] = _result(arm, folder, options)
        write_json(_OUT, {"machine": machine, "quick": options.quick, "arms": results})
    if options.plot:
        _draw(results, options.plot)
    said = [f"- {name}: {remark}" for name, result in results.items() for remark in remarks(result)]
    console.print(_table(results), *said, f"Machine: {machine}. Written to {_OUT}.", sep="\n")
    sys.exit(int(not options.quick and not all(as_claimed(result) for result in results.values())))


@dataclass(frozen=True, slots=True)
class Arm:
    """One training with the evaluation of what came out."""

    name: str
    seed: int
    shuffled: bool

    @property
    def folder(self) -> str:
        """What its folder is called."""
        return self.name.replace(",", "").replace(" ", "-")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.smollm2", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one seed, two steps of four rollouts, eight held-out tasks: shows nothing",
    )
    parser.add_argument("--seeds", type=int, default=3, help="so many runs")
    parser.add_argument("--steps", type=int, help="instead of the run file's")
    parser.add_argument("--no-control", action="store_true", help="leave out the run with shuffled rewards")
    parser.add_argument(
        "--vllm", action="store_true", help="train through transformers and sample with vLLM's CPU build"
    )
    parser.add_argument("--plot", type=Path, help="also draw the training rewards, as PNG")
    parser.add_argument("--fresh", action="store_true", help="forget finished runs")
    return parser.parse_args()


def _result(arm: Arm, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate what is not yet, and say what came out."""
    run, tasks = folder / "train", _QUICK_TASKS if options.quick else _HELD_OUT
    settings: dict[str, object] = {"seed": arm.seed, "trainer.reward_shuffle": str(arm.shuffled).lower()}
    settings |= _QUICK if options.quick else {}
    if options.steps:
        settings["trainer.steps"] = options.steps
    if options.vllm:
        outside = f'[{{kind = "vllm", url = "{_VLLM}"}}]'
        settings |= {"policy.implementation": "transformers", "engine.workers": 0, "engine.outside": outside}
    overrides = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    with _vllm(folder / "vllm.log") if options.vllm else nullcontext():
        timed(folder, "training", "train", str(RUN_FILE), "--folder", str(run), *overrides)
    words = (
        "--run",
        str(RUN_FILE),
        "--folder",
        str(folder / "eval"),
        "--limit",
        str(tasks),
        "--seed",
        str(arm.seed),
    )
    timed(folder, "evaluation", "eval", f"{run}@0", str(run), *words)
    return measure(folder)


@contextmanager
def _vllm(log: Path) -> Iterator[None]:
    """vLLM's CPU build with the policy, at `_VLLM`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with vllm_cpu.serving(log, ROOT / "policy", 256, port=int(_VLLM.rpartition(":")[2])):
        yield


def prepare(folder: Path, model: Path = vllm_cpu.MODEL) -> None:
    """A policy folder with SmolLM2's weights (fetched if need be) and a chat template that begins with the
    shots.
    """
    if not (model / "model.safetensors").exists():
        vllm_cpu.prepare()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).exists():
            (folder / name).symlink_to(model / name)
    (folder / "chat_template.jinja").write_text(template(SHOTS))


def template(shots: Sequence[tuple[str, str]]) -> str:
    """A ChatML template that shows worked turns between the first message and the second."""
    turns = (
        ("user", "assistant")[place % 2] + "\n" + said
        for place, said in enumerate(word for shot in shots for word in shot)
    )
    return _TEMPLATE.format(
        shots=json.dumps("".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns), ensure_ascii=False)
    )


def _call(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "harnessgym", *words], check=True)


def timed(folder: Path, phase: str, *words: str) -> None:
    """Run a command that resumes by itself, and add its seconds to those of its phase. What has ended is
    not run again.
    """
    path = folder / "phases.json"
    phases: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    done = phases.setdefault(phase, {"seconds": 0.0, "begun": 0, "ended": False, "words": list(words)})
    if done["words"] != list(words):
        sys.exit(f"{folder} holds another {phase}: {' '.join(done['words'])}. --fresh forgets it.")
    if done["ended"]:
        return
    done["begun"] += 1
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, phases)
    began = time.monotonic()
    try:
        _call(*words)
        done["ended"] = True
    finally:
        done["seconds"] += time.monotonic() - began
        write_json(path, phases)


def measure(folder: Path) -> dict[str, Any]:
    """What a finished training and evaluation say."""
    found = json.loads((folder / "eval/eval.json").read_text())
    trained = json.loads((folder / "train/summary.json").read_text())
    before, after = found["policies"][0], found["policies"][-1]
    (compared,) = found["comparisons"]
    phases = json.loads((folder / "phases.json").read_text())
    return {
        "start": before["reward"],
        "end": after["reward"],
        "gain": compared["difference"],
        "verdict": compared["verdict"],
        "tasks": compared["tasks"],
        "better": compared["better"],
        "worse": compared["worse"],
        "not_graded": before["not_graded"] + after["not_graded"],
        "version": after["version"],
        "rollouts": trained["rollouts"],
        "max_staleness": trained["max_staleness"],
        "tokens_sampled": trained["tokens_sampled"],
        "tokens_trained": trained["tokens_trained"],
        "longest_prompt": max(_longest_prompt(path) for path in sorted(folder.glob("*/**/traces.db"))),
        "wall_s": {name: round(phase["seconds"], 1) for name, phase in phases.items()},
        "begun": {name: phase["begun"] for name, phase in phases.items()},
        "train_wall_s": trained["wall_s"],
        "stop_reasons": trained["stop_reasons"],
        "reward_shuffle": trained["reward_shuffle"],
        "rewards": _rewards(folder / "train"),
    }


def _rewards(run: Path) -> list[float]:
    """The mean reward of each step's rollouts, as graded."""
    return [line["reward"] for line in read_metrics(RunFolder(run)) if "reward" in line]


def _longest_prompt(path: Path) -> int:
    with TraceStore.open(f"sqlite:///{path}") as store:
        return int(
            store.read(lambda conn: conn.execute(text("SELECT max(prompt_len) FROM calls")).scalar()) or 0
        )


def remarks(result: dict[str, Any]) -> list[str]:
    """What was asked of the benchmark and does not hold."""
    found = []
    if not START[0] <= result["start"]["mean"] <= START[1]:
        found.append(f"the success before training lies outside {START[0]:.0%} to {START[1]:.0%}")
    if sum(result["wall_s"].values()) > 3600:
        found.append("training and evaluation took more than 60 minutes")
    if again := [name for name, count in result["begun"].items() if count > 1]:
        found.append(
            f"interrupted and gone on: {', '.join(again)}; what a kill cut off is not in its seconds"
        )
    if result["tasks"] < 200:
        found.append(f"only {result['tasks']} tasks were compared: 200 are needed to say anything")
    return found


def as_claimed(result: dict[str, Any]) -> bool:
    """Whether it improved; of a control, whether it did not."""
    return bool((result["verdict"] == "better") != result["reward_shuffle"])


def _table(results: dict[str, dict[str, Any]]) -> Table:
    columns = (
        "run",
        "start",
        "end",
        "gain [95 %]",
        "better, worse",
        "tasks",
        "rollouts",
        "tokens sampled",
        "longest prompt",
    )
    title = "SmolLM2-135M-Instruct with mini-swe-agent, temperature 1"
    table = Table(*columns, "training, s", "evaluation, s", "as claimed", title=title)
    for name, result in results.items():
        gain, wall = result["gain"], result["wall_s"]
        interval = (
            "-" if gain["low"] is None else f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
        )
        table.add_row(
            name, f"{result['start']['mean']:.3f}", f"{result['end']['mean']:.3f}", interval,
            f"{result['better']}, {result['worse']}", str(result["tasks"]), str(result["rollouts"]),
            str(result["tokens_sampled"]), str(result["longest_prompt"]), f"{wall['training']:.0f}",
            f"{wall['evaluation']:.0f}", "yes" if as_claimed(result) else "NO",
        )  # fmt: skip
    return table


def _draw(results: dict[str, dict[str, Any]], path: Path) -> None:
    with picture(path, size=(7, 4)) as (_, ((axes,),)):
        for name, result in results.items():
            axes.plot(
                range(1, len(result["rewards"]) + 1),
                result["rewards"],
                "--" if result["reward_shuffle"] else "-",
                label=name,
            )
        axes.set(
            xlabel="step",
            ylabel="mean reward of the step's rollouts",
            ylim=(0, 1.15),
            title="SmolLM2-135M, mini-swe-agent",
        )
        axes.legend(loc="upper center", ncols=len(results), fontsize=8)


if __name__ == "__main__":
    main()
