"""`harnessgym weights-agent`."""

from typing import Annotated

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service

_EPILOG = """Any setting can be given as `--key value`; `--show-settings` lists them all.

vLLM is started with this project's worker extension, which needs nothing else of it:

`PYTHONPATH=$(harnessgym weights-agent --vllm-path) VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs
--worker-extension-cls harnessgym_vllm.Weights`

Then, on the same machine or on one that sees the folder of versions under the same path:

`HARNESSGYM_CONTROL_KEY=... harnessgym weights-agent --engine vllm --engine_url http://127.0.0.1:8000 --worker_id v0
--store sqlite:////tmp/traces.db --run_id RUN --policy_id POLICY --control_url http://127.0.0.1:8101`

with the control key of the proxy: `control_key` in its settings file.

Ids of run and policy: `harnessgym traces sql RUN "SELECT id, run_id, name FROM policies"`.

The routes of vLLM's development mode let whoever reaches them replace the weights: keep them off networks of others."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("weights-agent", context_settings=OVERRIDES, epilog=_EPILOG)
    def command(
        context: typer.Context,
        config: ConfigOption = None,
        show_settings: ShowOption = False,
        vllm_path: Annotated[
            bool, typer.Option("--vllm-path", help="Print the folder for vLLM's PYTHONPATH, and exit.")
        ] = False,
    ) -> None:
        """Keep a vLLM or SGLang server on the newest policy version: drain it at the proxy, install,
        check, let calls come.
        """
        if vllm_path:
            from harnessgym.registry import load

            typer.echo(load("service", "trainers.weights.installers.vllm:PLUGIN"))
            return
        run_service("weights-agent", config, context.args, show_settings)
