"""`harnessgym rollout`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.cli.side_calls import SideCalls, rules_of
from harnessgym.cli.tasks.arguments import Hidden

if TYPE_CHECKING:
    from rich.console import Console

    from harnessgym.batch_rollout.batch_rollout import BatchRollout
    from harnessgym.batch_rollout.settings import CampaignSettings

_EPILOG = """`--tasks` is a registered task set (`harnessgym tasks list`), `module:Class`, or a file or folder
of tasks. Those that failed `harnessgym tasks check` are left out.

What answers is named by `--upstream`:

- `http://HOST:PORT`: an engine, vLLM or `harnessgym engine MODEL`

- `sglang:http://HOST:PORT`: an SGLang server

- `litellm:PROVIDER/MODEL`: an outside model, recorded as text

- `scripted[:FILE]`: no model, scripted answers; `replay:ROLLOUT`: those of a recorded rollout

Evaluate a policy:

`harnessgym rollout --tasks shell --harness mini_swe_agent --sandbox docker -n 8 --samples 4 --upstream
http://127.0.0.1:8000 --folder runs/shell`

Try an agent of yours on a folder of tasks, without a model:

`harnessgym rollout --tasks my_tasks/ --set 'argv=["python", "agent.py"]' --upstream scripted --folder
runs/try`

Collect data from an outside model, the good rollouts only:

`harnessgym rollout --tasks shell --harness codex --upstream litellm:openai/gpt-5 --samples 8 --folder
runs/collect --keep-above 1 --export sft good.jsonl`

Let a trainer of yours drive the agents; address and key are in runs/node/endpoints.json:

`harnessgym rollout --serve 127.0.0.1:8200 --harness codex --upstream http://127.0.0.1:8000 --folder
runs/node`

The folder gets `results.jsonl` (a line per rollout), `summary.json`, `traces.db` and logs. The same command
in the same folder goes on where it was interrupted.

Exit status: 0 done, 1 done but some rollouts could not be graded, 2 an error (one message says what to do),
130 interrupted."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("rollout", epilog=_EPILOG)
    def command(
        *,
        folder: Annotated[Path, typer.Option(help="Where results, traces and logs go.")],
        tasks: Annotated[
            str | None, typer.Option(metavar="SPEC", help="Task set, `module:Class` or folder.")
        ] = None,
        harness: Annotated[
            str, typer.Option(help="Agent: a registered harness or `module:Class`.")
        ] = "command",
        settings: Annotated[
            list[str] | None,
            typer.Option(
                "--set", metavar="KEY=VALUE", help="Setting of the harness; TOML values. Repeatable."
            ),
        ] = None,
        sandbox: Annotated[
            str, typer.Option(help="process, bubblewrap, docker or `module:Class`.")
        ] = "bubblewrap",
        hidden: Hidden = None,
        upstream: Annotated[str | None, typer.Option(help="What answers.")] = None,
        at_once: Annotated[
            int, typer.Option("-n", "--at-once", min=1, help="Harnesses that run at one time.")
        ] = 8,
        samples: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 1,
        split: Annotated[str, typer.Option(help="train, test or all.")] = "all",
        task: Annotated[
            list[str] | None, typer.Option("--task", metavar="ID", help="Only this task. Repeatable.")
        ] = None,
        limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
        unfit: Annotated[
            bool, typer.Option("--unfit", help="Also run tasks that failed `harnessgym tasks check`.")
        ] = False,
        seed: Annotated[int, typer.Option(help="Seeds sampling.")] = 0,
        temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
        max_tokens: Annotated[int, typer.Option(min=1, help="New tokens per call at most.")] = 4_096,
        max_length: Annotated[
            int | None, typer.Option(help="Prompt and completion at most; else the engine's limit.")
        ] = None,
        timeout: Annotated[
            float | None, typer.Option(help="Seconds a harness may run; else the task's limit.")
        ] = None,
        retry: Annotated[
            int, typer.Option(min=0, help="Further attempts when something else than the agent fails.")
        ] = 2,
        side_call: SideCalls = None,
        first_token_s: Annotated[
            float,
            typer.Option(
                "--first-token-s",
                min=0.01,
                help="Seconds that an engine may take until the first token of an answer.",
            ),
        ] = 300.0,
        idle_s: Annotated[
            float, typer.Option("--idle-s", min=0.01, help="Seconds between two pieces of an answer.")
        ] = 60.0,
        policy: Annotated[
            Path | None, typer.Option(help="Model folder, where the engine does not tell it.")
        ] = None,
        parser: Annotated[
            str, typer.Option(help="Parser of its tool calls (docs/models.md); auto: that of its template.")
        ] = "auto",
        model: Annotated[str, typer.Option(help="Model name that the harness sees.")] = "policy",
        serve: Annotated[
            str, typer.Option(metavar="HOST:PORT", help="Also take rollouts over HTTP; go on until told.")
        ] = "",
        second_opinion: Annotated[
            str,
            typer.Option(
                metavar="HOW",
                help="evidence: note where what is rewarded with 1 differs from the task's solution. "
                "required: keep a reward only if it gives the solution's values.",
            ),
        ] = "off",
        integrity: Annotated[
            str,
            typer.Option(
                metavar="KIND", help="by_value: refuse tasks whose tests the judged code can forge."
            ),
        ] = "any",
        keep_above: Annotated[
            float | None, typer.Option(help="Export only rollouts with at least this reward.")
        ] = None,
        export: Annotated[
            tuple[str, Path] | None,
            typer.Option(metavar="FORMAT FILE", help="When done, write the graded rollouts."),
        ] = None,
    ) -> None:
        """Run an agent on tasks, many at a time, and record, grade and count what it does.

        Evaluates a policy, collects data from any model, or lets a trainer of yours drive the agents
        (`--serve`).
        """
        if keep_above is not None and export is None:
            raise typer.BadParameter(
                "--keep-above chooses what --export writes: give `--export FORMAT FILE`, e.g. sft good.jsonl"
            )
        options: dict[str, Any] = {
            "folder": folder, "tasks": tasks, "harness": harness,
            "harness_settings": settings_of(settings or []),
            "sandbox": sandbox, "hidden": tuple(hidden or ()), "upstream": upstream, "at_once": at_once,
            "samples": samples, "split": split, "limit": limit,
            "task": tuple(task or ()), "unfit": unfit, "seed": seed, "temperature": temperature,
            "max_tokens": max_tokens,
            "max_length": max_length, "timeout_s": timeout, "retries": retry, "policy": policy,
            "parser": parser,
            "model": model, "serve": serve,
            "second_opinion": second_opinion, "integrity": integrity,
            "first_token_s": first_token_s, "idle_s": idle_s,
            "session": {"constraints": "prompt", "side_calls": rules_of(side_call or [])},
        }  # fmt: skip
        campaign = _campaign(options)
        summary = _run(campaign)
        if export is not None:
            _export(campaign, export[0], export[1], keep_above)
        if summary["not_graded"]:
            raise typer.Exit(1)


def _campaign(options: dict[str, Any]) -> "BatchRollout":
    """Make the campaign and print remarks on its tasks."""
    from harnessgym.batch_rollout.batch_rollout import BatchRollout
    from harnessgym.batch_rollout.settings import CampaignSettings
    from harnessgym.config import validate

    campaign = BatchRollout(validate(CampaignSettings, options, "the command line"))
    for line in campaign.remarks:
        typer.echo(line, err=True)
    return campaign


def settings_of(words: list[str]) -> dict[str, Any]:
    """The settings of `--set KEY=VALUE`. Raises `BadParameter` for anything else."""
    from harnessgym.config import parse_value

    out = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise typer.BadParameter(
                f'--set {word!r}: write KEY=VALUE, e.g. --set \'argv=["python", "agent.py"]\''
            )
        out[key] = parse_value(value)
    return out


def _run(campaign: "BatchRollout") -> dict[str, Any]:
    """Run to the end or until interrupted."""
    import logging

    from rich.console import Console

    from harnessgym.cli.interruption import run_interruptible
    from harnessgym.cli.rollout_table import RolloutTable

    console = Console(stderr=True)
    # Claimed before logging starts: a refused command must not write to the log of a running campaign.
    campaign.claim()
    campaign.folder.logs.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=campaign.folder.logs / "node.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with RolloutTable(console) as table:
        summary = run_interruptible(campaign.run(table))
    _print(summary, campaign.settings, console)
    return summary


def _print(summary: dict[str, Any], settings: "CampaignSettings", console: "Console") -> None:
    from rich.table import Table

    table = Table(
        "", "mean", "95 % interval", title=f"{summary['graded']} of {summary['rollouts']} rollouts graded"
    )
    for name in ("reward", *(key for key in summary if key.startswith("pass@"))):
        estimate = summary[name]
        interval = "-" if estimate["low"] is None else f"[{estimate['low']:.3f}, {estimate['high']:.3f}]"
        table.add_row(name, "-" if estimate["mean"] is None else f"{estimate['mean']:.3f}", interval)
    console.print(table)
    if summary["causes"]:
        console.print(
            "causes: " + ", ".join(f"{count} {name}" for name, count in summary["causes"].items()),
            highlight=False,
        )
    folder = settings.folder
    console.print(
        f"{folder}/results.jsonl, {folder}/summary.json, {folder}/traces.db", highlight=False, soft_wrap=True
    )


def _export(campaign: "BatchRollout", format: str, out: Path, at_least: float | None) -> None:  # noqa: A002
    from harnessgym.batch_rollout.batch_rollout import PURPOSE
    from harnessgym.run_identity import run_of
    from harnessgym.store import TraceStore
    from harnessgym.store.rollout_states import slots
    from harnessgym.traces.completions import Languages
    from harnessgym.traces.export import export

    with TraceStore.open(campaign.store_url) as store:
        run = store.read(lambda conn: run_of(conn, campaign.folder))
        assert run is not None
        states = store.read(lambda conn: slots(conn, run.id, PURPOSE))
        graded = [state for state in states if state.status == "finished" and state.verdict == "valid"]
        kept = [
            state.id
            for state in graded
            if at_least is None or (state.reward is not None and state.reward >= at_least)
        ]
        made = export(store, kept, format, out, Languages(campaign.upstream.policy))
    typer.echo(
        f"{out}: {made.records:,} records of {made.rollouts:,} rollouts; {len(states) - made.rollouts:,} "
        "were rejected."
    )
