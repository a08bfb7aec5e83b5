"""`harnessgym eval`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from harnessgym.evaluation.comparison import Comparison, PolicyScore
    from harnessgym.evaluation.evaluation import Evaluated, Evaluation
    from harnessgym.metrics.interval import Interval

_EPILOG = """A POLICY is

- `runs/mine`: a run, its newest version; `runs/mine@12`: its version 12, `runs/mine@0`: what it started from

- `models/qwen`: a Hugging Face model folder

- `http://HOST:PORT`: an engine that runs; or another upstream of `harnessgym rollout`

For runs and folders the command starts an embedded engine, and ends it. All policies get the same tasks and
the same sampling seeds, one policy after another; each is compared with the first one, task by task.

Before and after training, as the run file says:

`harnessgym eval runs/quickstart@0 runs/quickstart --run examples/quickstart.toml --folder runs/eval`

One policy, pass@4 on the first 50 held-out tasks:

`harnessgym eval models/mine --tasks shell --harness mini_swe_agent --sandbox docker --limit 50 --samples 4
--folder runs/eval`

A model of yours against one that vLLM serves, in a script that goes on only if it is better:

`harnessgym eval http://127.0.0.1:8000 models/mine --tasks my_tasks/ --set 'argv=["python", "agent.py"]'
--require-gain --folder runs/eval`

The folder gets `eval.json`, and a folder for each policy with `results.jsonl` (a line per rollout),
`summary.json`, `traces.db` and logs. The same command in the same folder goes on where it was interrupted,
with the versions that it began with.

Exit status: 0 done, 1 `--require-gain` not met, 2 an error (one message says what to do), 130 interrupted."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("eval", epilog=_EPILOG)
    def command(
        *,
        policies: Annotated[
            list[str], typer.Argument(metavar="POLICY...", help="What is evaluated, the baseline first.")
        ],
        folder: Annotated[Path, typer.Option(help="Where results, traces and logs go.")],
        run: Annotated[
            Path | None,
            typer.Option(help="Run file that tasks, harness, sandbox and sampling are taken from."),
        ] = None,
        tasks: Annotated[
            str | None, typer.Option(metavar="SPEC", help="Task set, `module:Class` or folder.")
        ] = None,
        split: Annotated[str | None, typer.Option(help="train, test or all.", show_default="test")] = None,
        task: Annotated[
            list[str] | None, typer.Option("--task", metavar="ID", help="Only this task. Repeatable.")
        ] = None,
        limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
        unfit: Annotated[
            bool | None, typer.Option("--unfit", help="Also run tasks that failed `harnessgym tasks check`.")
        ] = None,
        harness: Annotated[
            str | None,
            typer.Option(
                help="Agent: a registered harness or `module:Class`; with --run, one of the run's, else its "
                "first."
            ),
        ] = None,
        settings: Annotated[
            list[str] | None,
            typer.Option(
                "--set", metavar="KEY=VALUE", help="Setting of the harness; TOML values. Repeatable."
            ),
        ] = None,
        sandbox: Annotated[
            str | None,
            typer.Option(help="process, bubblewrap, docker or `module:Class`.", show_default="bubblewrap"),
        ] = None,
        samples: Annotated[int, typer.Option(min=1, help="Rollouts of each task, the k of pass@k.")] = 1,
        temperature: Annotated[
            float | None, typer.Option(min=0.0, help="Sampling temperature.", show_default="1.0")
        ] = None,
        max_tokens: Annotated[
            int | None, typer.Option(min=1, help="New tokens per call at most.", show_default="4096")
        ] = None,
        max_length: Annotated[
            int | None, typer.Option(help="Prompt and completion at most; else the model's limit.")
        ] = None,
        at_once: Annotated[
            int | None,
            typer.Option("-n", "--at-once", min=1, help="Harnesses that run at one time.", show_default="8"),
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Seeds sampling.", show_default="0")] = None,
        timeout: Annotated[
            float | None, typer.Option(help="Seconds a harness may run; else the task's limit.")
        ] = None,
        retry: Annotated[
            int | None,
            typer.Option(
                min=0, help="Further attempts when something else than the agent fails.", show_default="2"
            ),
        ] = None,
        first_token_s: Annotated[
            float | None,
            typer.Option(
                "--first-token-s",
                min=0.01,
                help="Seconds that an engine may take until the first token of an answer.",
                show_default="300",
            ),
        ] = None,
        idle_s: Annotated[
            float | None,
            typer.Option(
                "--idle-s", min=0.01, help="Seconds between two pieces of an answer.", show_default="60"
            ),
        ] = None,
        tokenizer: Annotated[
            Path | None, typer.Option(help="Model folder, where an engine does not tell it.")
        ] = None,
        parser: Annotated[
            str | None,
            typer.Option(
                help="Parser of its tool calls (docs/models.md); auto: that of its template.",
                show_default="auto",
            ),
        ] = None,
        require_gain: Annotated[
            bool,
            typer.Option(
                "--require-gain", help="Exit with status 1 unless the last policy is better than the first."
            ),
        ] = False,
    ) -> None:
        """Evaluate policies on held-out tasks: pass@k with 95 % intervals, and each compared with the
        first one.
        """
        if require_gain and len(policies) < 2:
            raise typer.BadParameter(
                "--require-gain compares the last policy with the first one: give two policies"
            )
        options: dict[str, Any] = {
            "tasks": tasks, "split": split, "task": tuple(task) if task else None, "limit": limit,
            "unfit": unfit,
            "harness": harness, "harness_settings": _settings(settings), "sandbox": sandbox,
            "samples": samples,
            "temperature": temperature, "max_tokens": max_tokens, "max_length": max_length,
            "at_once": at_once, "seed": seed,
            "timeout_s": timeout, "retries": retry, "policy": tokenizer, "parser": parser,
            "first_token_s": first_token_s, "idle_s": idle_s,
        }  # fmt: skip
        options = {name: value for name, value in options.items() if value is not None}
        done = _run(_evaluation(policies, folder, run, options))
        if require_gain:
            _require_gain(done)


def _require_gain(done: "Sequence[Evaluated]") -> None:
    """Exit with status 1 unless the last policy is better than the first."""
    last = done[-1].comparison
    if last is None or not last.gained:
        typer.echo(
            "The 95 % interval of the difference does not lie above 0: no improvement is shown.", err=True
        )
        raise typer.Exit(1)


def _settings(words: list[str] | None) -> dict[str, Any] | None:
    from harnessgym.cli.rollout import settings_of

    return settings_of(words) if words else None


def _evaluation(policies: list[str], folder: Path, run: Path | None, options: dict[str, Any]) -> "Evaluation":
    """Make the evaluation and print remarks on its tasks."""
    from harnessgym.batch_rollout.settings import CampaignSettings
    from harnessgym.config import validate
    from harnessgym.evaluation.evaluation import Evaluation, EvaluationSettings

    if run is None and "tasks" not in options:
        raise typer.BadParameter("give --tasks SPEC, or --run RUN.toml whose tasks are taken")
    asked = {"split": "test"} | (options if run is None else _with_run(run, options)) | {"folder": folder}
    campaign = validate(CampaignSettings, asked, "the command line")
    evaluation = Evaluation(EvaluationSettings(policies=tuple(policies), campaign=campaign))
    for line in evaluation.remarks:
        typer.echo(line, err=True)
    return evaluation


def _with_run(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run file, overridden by the given ones."""
    from harnessgym.config import load_config
    from harnessgym.evaluation.policies import as_in_run
    from harnessgym.registry import look_in
    from harnessgym.run_config.run import RunConfig

    own = dict(options)
    config = load_config(RunConfig, path).beside(path)
    look_in(*config.code)
    run_settings = as_in_run(config, own.pop("harness", None), lambda line: typer.echo(line, err=True))
    # Merged key by key, so that one `--set` does not drop the run's other harness settings.
    own["harness_settings"] = run_settings["harness_settings"] | own.get("harness_settings", {})
    return run_settings | own


def _run(evaluation: "Evaluation") -> list["Evaluated"]:
    """Run to the end or until interrupted."""
    import logging

    from rich.console import Console

    from harnessgym.cli.interruption import run_interruptible
    from harnessgym.cli.rollout_table import RolloutTable
    from harnessgym.cli.traces.printed import console as stdout

    console = Console(stderr=True)
    log = evaluation.folder.logs / "eval.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    done = run_interruptible(
        evaluation.run(lambda line: typer.echo(line, err=True), lambda: RolloutTable(console))
    )
    _print(evaluation, done, stdout())
    return done


def _print(evaluation: "Evaluation", done: list["Evaluated"], console: "Console") -> None:
    from harnessgym.evaluation.comparison import FEW_TASKS

    console.print(_table(evaluation, done))
    few = min((each.comparison.tasks for each in done if each.comparison), default=len(evaluation.tasks))
    if few < FEW_TASKS:
        warning = f"Intervals over {few} tasks are narrower than they should be. Take {FEW_TASKS} or more."
        console.print(warning, highlight=False, soft_wrap=True)
    console.print(str(evaluation.settings.campaign.folder / "eval.json"), highlight=False, soft_wrap=True)


def _table(evaluation: "Evaluation", done: list["Evaluated"]) -> "Table":
    """The results, with one column per policy, named after its folder."""
    from rich.table import Table

    title = (
        f"{len(evaluation.tasks)} tasks, {evaluation.samples} rollouts of each [95 % intervals over tasks]"
    )
    table = Table("", *(each.folder.name for each in done), title=title, title_justify="left")
    for k in done[0].score.pass_at:
        table.add_row(f"pass@{k}", *(_interval(each.score.pass_at[k]) for each in done))
    table.add_row("reward", *(_interval(each.score.reward) for each in done))
    table.add_row(
        "tokens per rollout", *("-" if (n := each.score.tokens) is None else f"{n:.0f}" for each in done)
    )
    table.add_row("not graded", *(_not_graded(each.score) for each in done), end_section=True)
    if len(done) > 1:
        compared = [each.comparison for each in done]
        table.add_row(
            "against the first", *("" if one is None else _interval(one.difference, "+") for one in compared)
        )
        table.add_row("better, worse, equal", *("" if one is None else _tasks(one) for one in compared))
        table.add_row("", *("" if one is None else one.verdict for one in compared))
    return table


def _not_graded(score: "PolicyScore") -> str:
    count = score.rollouts - score.graded
    causes = ", ".join(f"{times} {cause}" for cause, times in score.failures.items())
    count_and_causes = f"{count}: {causes}" if causes else str(count)
    return count_and_causes if not score.run_again else f"{count_and_causes} ({score.run_again} run again)"


def _tasks(comparison: "Comparison") -> str:
    counts = f"{comparison.better}, {comparison.worse}, {comparison.equal} tasks"
    return counts if not comparison.left_out else f"{counts}; {comparison.left_out} left out"


def _interval(interval: "Interval", sign: str = "") -> str:
    if interval.mean is None:
        return "-"
    if interval.low is None:
        return f"{interval.mean:{sign}.3f}"
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"
