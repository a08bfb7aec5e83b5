"""What the commands that run one process have in common: settings from a file and from the command line, shown on request."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harnessgym.config import load_config
from harnessgym.registry import load

OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Typer context settings of a command that takes `--dotted.key value`."""

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="Settings file, TOML or JSON.")]
ShowOption = Annotated[bool, typer.Option("--show-settings", help="List every setting with its meaning and default, and exit.")]


def run_service(
    name: str, config: Path | None, overrides: list[str], show: bool, serve: Callable[[Any], None] | None = None
) -> None:
    """Validate the settings of a service and run it, the registered one or `serve`, until it ends."""
    model: type[BaseModel] = load("settings", name)
    if show:
        show_settings(model, name)
        return
    settings = load_config(model, config, overrides)
    if parent := os.environ.get("HARNESSGYM_PARENT"):
        from harnessgym.process import die_with_parent

        die_with_parent(int(parent))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    (serve or load("service", name))(settings)


def show_settings(model: type[BaseModel], title: str) -> None:
    """A table of a settings model: dotted key, default, meaning."""
    from rich.console import Console
    from rich.table import Table

    table = Table("--key", "default", "meaning", title=f"Settings of {title}", title_justify="left")
    for key, default, meaning in _rows(model, ""):
        table.add_row(key, default, meaning)
    Console().print(table)


def _default(field: FieldInfo) -> str:
    """A default for people; of what is a secret only where it comes from."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "environment" in extra:
        return f"${extra['environment']}"
    return repr(field.get_default(call_default_factory=True))


def _rows(model: type[BaseModel], prefix: str) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        inner: Any = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows += _rows(inner, f"{prefix}{name}.")
        else:
            default = "required" if field.is_required() else _default(field)
            rows.append((prefix + name, default, field.description or ""))
    return rows
