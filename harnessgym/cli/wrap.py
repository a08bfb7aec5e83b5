"""`harnessgym wrap`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.side_calls import SideCalls, rules_of

if TYPE_CHECKING:
    from rich.console import Console

    from harnessgym.wrapping import Wrapped

_EPILOG = """What answers is named by `--upstream`:

- `http://HOST:PORT`: an engine, vLLM or `harnessgym engine MODEL`

- `sglang:http://HOST:PORT`: an SGLang server

- `litellm:PROVIDER/MODEL`: an outside model, recorded as text

- `scripted[:FILE]`: no model, scripted answers

Example: `harnessgym wrap --upstream http://127.0.0.1:8000 -- codex exec "fix the failing test"`

Exit status: the command's own, or 2 if it could not be started."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("wrap", epilog=_EPILOG)
    def command(
        *,
        argv: Annotated[
            list[str], typer.Argument(metavar="COMMAND...", help="The command and its arguments, after `--`.")
        ],
        upstream: Annotated[str | None, typer.Option(help="What answers.")] = None,
        policy: Annotated[
            Path | None, typer.Option(help="Model folder, where the engine does not tell it.")
        ] = None,
        parser: Annotated[
            str, typer.Option(help="Parser of its tool calls (docs/models.md); auto: that of its template.")
        ] = "auto",
        harness: Annotated[
            str | None, typer.Option(help="Harness; found by the program's name if not given.")
        ] = None,
        folder: Annotated[Path, typer.Option(help="Where traces.db and logs go.")] = Path("runs/wrap"),
        join: Annotated[Path | None, typer.Option(help="Folder of a live run whose proxy to use.")] = None,
        model: Annotated[str, typer.Option(help="Model name the command sees.")] = "policy",
        turns: Annotated[int | None, typer.Option(help="Model calls at most.")] = None,
        tokens: Annotated[int | None, typer.Option(help="Sampled tokens at most.")] = None,
        max_tokens: Annotated[int, typer.Option(help="New tokens per call at most.")] = 4_096,
        max_length: Annotated[
            int | None, typer.Option(help="Prompt and completion at most; else the engine's limit.")
        ] = None,
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
    ) -> None:
        """Run any agent with the proxy as its provider, unchanged, and record every token.

        Sets the provider variables and settings files that the command's harness reads. Known harnesses:
        claude, codex, gemini, mini, opencode, pi, qwen; anything else gets the variables that OpenAI's,
        Anthropic's and Google's SDKs read.
        """
        from rich.console import Console

        from harnessgym.run_config.session import SessionOptions
        from harnessgym.wrapping import WrapSettings, wrap

        options = SessionOptions(constraints="prompt", side_calls=rules_of(side_call or []))
        settings = WrapSettings(
            options=options,
            folder=folder,
            upstream=upstream,
            policy=policy,
            parser=parser,
            harness=harness,
            model=model,
            join=join,
            turns=turns,
            tokens=tokens,
            max_length=max_length,
            max_tokens=max_tokens,
            first_token_s=first_token_s,
            idle_s=idle_s,
        )
        wrapped = wrap(argv, settings)
        _show(Console(stderr=True), wrapped)
        raise typer.Exit(wrapped.status)


def _show(console: "Console", wrapped: "Wrapped") -> None:
    """Print one screen: the calls, what can be trained, where the trace is."""
    from rich.table import Table

    from harnessgym.store import TraceStore
    from harnessgym.store.backend import file_of
    from harnessgym.traces.overview import overview

    with TraceStore.open(wrapped.store_url) as store:
        seen = store.read(lambda conn: overview(conn, wrapped.rollout_id))
    table = Table(
        title=f"{wrapped.harness}: exit status {wrapped.status} after {wrapped.seconds:.1f} s",
        show_header=False,
    )
    for name, value in seen.rows():
        table.add_row(name, value)
    console.print(table)
    source = file_of(wrapped.store_url)
    console.print(
        f"Trace: {source}\nLook: harnessgym traces show {source} {wrapped.rollout_id}", soft_wrap=True
    )
    if not wrapped.calls:
        console.print(
            "[yellow]The command never called the proxy: does it read its provider from the "
            "environment?[/yellow]"
        )
