"""A run's processes as commands: `harnessgym proxy`, `engine`, `node`, `train-worker`, `weights-agent`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service

_SETTINGS = "Any setting can be given as `--key value`; `--show-settings` lists them all."
_PROXY_EPILOG = f"""{_SETTINGS}

Example: `HARNESSGYM_CONTROL_KEY=... harnessgym proxy --store sqlite:////tmp/traces.db --run_id RUN
--policy MODEL --port 8100 --control_port 8101`"""
_ENGINE_EPILOG = f"""{_SETTINGS}

Example: `harnessgym engine environments/lookup/policy --port 8000 --max_batch 16`"""
_AGENT_EPILOG = """Any setting can be given as `--key value`; `--show-settings` lists them all.

Start vLLM with this project's worker extension, which needs nothing else from the project:

`PYTHONPATH=$(harnessgym weights-agent --vllm-path) VLLM_SERVER_DEV_MODE=1 vllm serve MODEL
--logprobs-mode processed_logprobs --worker-extension-cls harnessgym_vllm.Weights`

Then start the agent on the same machine, or on one that sees the folder of versions under the same path:

`HARNESSGYM_CONTROL_KEY=... harnessgym weights-agent --engine vllm --engine_url http://127.0.0.1:8000
--worker_id v0 --store sqlite:////tmp/traces.db --run_id RUN --policy_id POLICY
--control_url http://127.0.0.1:8101`

The control key is the proxy's `control_key`.

To list the ids of runs and policies: `harnessgym traces sql RUN "SELECT id, run_id, name FROM policies"`.

Anyone who reaches the routes of vLLM's development mode can replace the weights: keep them off shared
networks."""


def register(root: typer.Typer) -> None:
    """Add the commands."""

    @root.command("proxy", context_settings=OVERRIDES, epilog=_PROXY_EPILOG)
    def proxy(context: typer.Context, config: ConfigOption = None, show_settings: ShowOption = False) -> None:
        """Serve the LLM API proxy: harnesses on one side, engines on the other, every token recorded."""
        run_service("proxy", config, context.args, show_settings)

    @root.command("engine", context_settings=OVERRIDES, epilog=_ENGINE_EPILOG)
    def engine(
        context: typer.Context,
        model: Annotated[
            Path | None, typer.Argument(help="Model folder (config.json, model.safetensors, tokenizer.json).")
        ] = None,
        config: ConfigOption = None,
        show_settings: ShowOption = False,
    ) -> None:
        """Serve a model with the embedded engine: token ids in; ids, logprobs and policy versions out."""
        arguments = ["--model", str(model)] if model is not None else []
        run_service("engine", config, [*arguments, *context.args], show_settings)

    @root.command("weights-agent", context_settings=OVERRIDES, epilog=_AGENT_EPILOG)
    def weights_agent(
        context: typer.Context,
        config: ConfigOption = None,
        show_settings: ShowOption = False,
        vllm_path: Annotated[
            bool, typer.Option("--vllm-path", help="Print the folder for vLLM's PYTHONPATH, and exit.")
        ] = False,
    ) -> None:
        """Keep a vLLM or SGLang server on the newest policy version: drain it at the proxy, install the
        weights, check them, and let calls in again.
        """
        if vllm_path:
            from harnessgym.registry import load

            typer.echo(load("service", "trainers.weights.installers.vllm:PLUGIN"))
            return
        run_service("weights-agent", config, context.args, show_settings)

    @root.command("node", context_settings=OVERRIDES, epilog=_SETTINGS)
    def node(context: typer.Context, config: ConfigOption = None, show_settings: ShowOption = False) -> None:
        """Run rollouts: claim them from the store, run harnesses in sandboxes, grade and record."""
        run_service("node", config, context.args, show_settings)

    @root.command("train-worker", context_settings=OVERRIDES, epilog=_SETTINGS)
    def train_worker(
        context: typer.Context, config: ConfigOption = None, show_settings: ShowOption = False
    ) -> None:
        """Train: take complete groups from the store, step, checkpoint, publish policy versions."""
        run_service("train-worker", config, context.args, show_settings, _algorithm)


def _algorithm(settings: Any) -> Callable[[Any], None]:
    """Load the algorithm that the run's configuration names."""
    from harnessgym.registry import load, look_in
    from harnessgym.run_folder import RunFolder

    config = RunFolder(settings.run).config()
    look_in(*config.code)
    algorithm: Callable[[Any], None] = load("algorithm", config.trainer.algorithm)
    return algorithm
