"""Shared by commands that run one process: settings from file and command line, `--show-settings`."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.process import PARENT, die_with_parent
from harnessgym.registry import load

if TYPE_CHECKING:
    from pydantic import BaseModel

OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Typer context settings for commands that take `--dotted.key value`."""

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="Settings file, TOML or JSON.")]
ShowOption = Annotated[
    bool, typer.Option("--show-settings", help="List every setting with its meaning and default, and exit.")
]


def run_service(
    name: str,
    config: Path | None,
    overrides: list[str],
    show: bool,
    choose: Callable[[Any], Callable[[Any], None]] | None = None,
) -> None:
    """Validate a service's settings and run it: the registered service, or the one that `choose` loads."""
    # Imported here because pydantic takes a fifth of a second, which `--help` should not cost.
    from harnessgym.config import load_config
    from harnessgym.heartbeat import begin as begin_heartbeat

    model: type[BaseModel] = load("settings", name)
    if show:
        show_settings(model, name)
        return
    settings = load_config(model, config, overrides)
    if parent := os.environ.get(PARENT):
        die_with_parent(int(parent))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    serve = choose(settings) if choose else load("service", name)
    # Start only after the modules are loaded: a library that takes minutes to load may block every thread.
    begin_heartbeat()
    serve(settings)


def show_settings(model: "type[BaseModel]", title: str) -> None:
    """Print a table of a settings model: dotted key, default, meaning."""
    from rich.markup import escape
    from rich.table import Table

    from harnessgym.cli.traces.printed import console
    from harnessgym.config.setting_tree import setting_rows

    table = Table(title=f"Settings of {title}", title_justify="left")
    table.add_column("--key", no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("meaning")
    for row in setting_rows(model):
        table.add_row(*map(escape, row))
    console().print(table)
