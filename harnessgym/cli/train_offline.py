"""`harnessgym train-offline`."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from harnessgym.cli.traces.filters import Harness, MinReward, Purpose, Run, Task
from harnessgym.cli.traces.source import AsJson, Source

_EPILOG = """Methods: `sft` learns every rollout, `rejection` the best of each group, both only with at least
`--min-reward`; `dpo` prefers the best of each group to the worst, where they have a common prompt. All learn
the recorded tokens of the policy itself, never what tools or users said. Needs TRL: `pip install
'harnessgym-rl[trl]'`.

Examples:

`harnessgym train-offline runs/collect --method rejection --min-reward 1 --policy models/start --out
models/better`

`harnessgym train-offline runs/quickstart --purpose train --method dpo --policy environments/lookup/policy
--out models/dpo --set learning_rate=1e-5 --set num_train_epochs=3`

`--set` takes the settings of TRL's SFTConfig or DPOConfig.

JSON: {path, method, rollouts, examples, tokens, steps, loss}.

Exit status: 0 done; 2 an error, and what stood at --out is untouched."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("train-offline", epilog=_EPILOG)
    def command(
        source: Source,
        method: Annotated[
            Literal["sft", "rejection", "dpo"], typer.Option(help="What to learn from, and how.")
        ],
        policy: Annotated[Path, typer.Option(help="Model folder that training starts from.")],
        out: Annotated[Path, typer.Option(help="Model folder to write.")],
        settings: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Setting of TRL's trainer. Repeatable."),
        ] = None,
        run: Run = None,
        purpose: Purpose = None,
        task: Task = None,
        harness: Harness = None,
        min_reward: MinReward = None,
        as_json: AsJson = False,
    ) -> None:
        """Train a policy on recorded rollouts: supervised, by rejection sampling, or on preference pairs
        (DPO).
        """
        from harnessgym.cli.rollout import settings_of
        from harnessgym.cli.traces.filters import selected
        from harnessgym.cli.traces.printed import print_json
        from harnessgym.cli.traces.source import opened
        from harnessgym.errors import ConfigError
        from harnessgym.registry import load
        from harnessgym.store.listing import RolloutFilter

        if method == "dpo" and min_reward is not None:
            raise ConfigError(
                "--min-reward chooses what sft and rejection learn; dpo needs the worst rollouts too. Leave "
                "it out."
            )
        if not (policy / "config.json").is_file():
            raise ConfigError(
                f"No policy at {policy}: config.json is missing. Give a Hugging Face model folder."
            )
        trainer_settings = settings_of(settings or [])
        train = load("service", "train-offline")
        with opened(source) as store, redirect_stdout(sys.stderr):  # TRL prints on stdout, which may be JSON
            wanted = RolloutFilter(run, purpose, task, harness, "finished", verdict="valid")
            made = train(
                method, store, selected(store, None, wanted), policy, out, trainer_settings, min_reward
            )
        summary: dict[str, Any] = {
            name: getattr(made, name) for name in ("rollouts", "examples", "tokens", "steps", "loss")
        }
        if as_json:
            print_json({"path": str(out), "method": method} | summary)
        else:
            typer.echo(
                f"{out}: {made.examples:,} examples ({method}) of {made.rollouts:,} rollouts, "
                f"{made.tokens:,} tokens learnt; {made.steps:,} steps, loss {made.loss:.4f}."
            )
