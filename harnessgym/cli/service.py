"""What the commands that run one process have in common: settings from a file and from the command line, shown on request."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harnessgym.config import load_config
from harnessgym.heartbeat import begin as begin_heartbeat
from harnessgym.registry import load

OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Typer context settings of a command that takes `--dotted.key value`."""

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="Settings file, TOML or JSON.")]
ShowOption = Annotated[bool, typer.Option("--show-settings", help="List every setting with its meaning and default, and exit.")]


def run_service(
    name: str,
    config: Path | None,
    overrides: list[str],
    show: bool,
    choose: Callable[[Any], Callable[[Any], None]] | None = None,
) -> None:
    """Validate the settings of a service and run it, the registered one or what `choose` loads for them, until it ends."""
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
    serve = choose(settings) if choose else load("service", name)
    begin_heartbeat()  # once the modules are loaded: a library that takes minutes to load may hold up every thread
    serve(settings)


def show_settings(model: type[BaseModel], title: str) -> None:
    """A table of a settings model: dotted key, default, meaning."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("--key", "default", "meaning", title=f"Settings of {title}", title_justify="left")
    for row in setting_rows(model):
        table.add_row(*map(escape, row))
    Console().print(table)


def _default(field: FieldInfo) -> str:
    """A default for people; of what is a secret only where it comes from."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "environment" in extra:
        return f"${extra['environment']}"
    return repr(field.get_default(call_default_factory=True))


def setting_rows(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str]]:
    """Key, default and meaning of every setting; those of a table that may be there or not, or any number of times, too."""
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        inner, key = _table(field.annotation), prefix + name
        if inner is not None and inner == field.annotation:
            rows += setting_rows(inner, f"{key}.")
            continue
        rows.append((key, "required" if field.is_required() else _default(field), field.description or ""))
        if inner is not None:
            rows += setting_rows(inner, f"{key}.")
    return rows


def _table(annotation: Any) -> Any:
    """The one settings class that an annotation is or holds: `Section`, `Section | None`, `tuple[Section, ...]`."""
    found = _tables(annotation)
    return found.pop() if len(found) == 1 else None


def _tables(annotation: Any) -> set[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return set[Any]().union(*map(_tables, get_args(annotation)))
