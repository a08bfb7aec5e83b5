"""Finds the store and the rollout that a command's arguments name."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.errors import StoreError

if TYPE_CHECKING:
    from harnessgym.store import TraceStore
    from harnessgym.traces.export import TracedRollout

Source = Annotated[str, typer.Argument(help="Run folder, database file or database URL.", metavar="SOURCE")]
Rollout = Annotated[str, typer.Argument(help="Rollout id, how it begins, or `latest`.", metavar="ROLLOUT")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Policy = Annotated[
    list[str] | None,
    typer.Option(
        help="Model folder whose tokenizer to read answers with, where the one that the store names is not "
        "here; NAME=FOLDER "
        "for one of several policies, and then once for each.",
        metavar="[NAME=]FOLDER",
    ),
]


_LATEST = "latest"


def store_url(source: str, *, new: bool = False) -> str:
    """The database URL of a run folder, a database file or a URL.

    Raises `StoreError` if there is no such folder or file, unless the command may create it (`new`).
    """
    if "://" in source:
        return source
    from harnessgym.run_folder import RunFolder
    from harnessgym.store.backend import url_of_file

    folder = RunFolder(Path(source))
    if folder.config_path.is_file():
        return folder.store_url()
    if not folder.root.exists() and not new:
        raise StoreError(_nothing_at(folder.root))
    return url_of_file(folder.root / "traces.db" if folder.root.is_dir() else folder.root)


def import_url(target: str) -> str:
    """The database URL of an import's target, which need not exist yet.

    Raises `ConfigError` for the folder of a run.
    """
    from harnessgym.run_identity import refuse_run_folder

    if "://" not in target:
        refuse_run_folder(Path(target), "Give another folder, a database file or a database URL.")
    return store_url(target, new=True)


def _nothing_at(path: Path) -> str:
    beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1)
    hint = f"Did you mean {path.parent / close[0]}? " if close else ""
    return (
        f"There is no folder or file {path}. {hint}Give a run's folder, a database file, or a database URL."
    )


@contextmanager
def opened(source: str) -> "Iterator[TraceStore]":
    """Open the store of a source.

    Raises `StoreError` if there is none, if it is not a database, or if its schema differs. Raises
    `ConfigError` if it is a run folder whose database does not hold the run.
    """
    from harnessgym.run_folder import RunFolder
    from harnessgym.run_identity import read_identity, run_of
    from harnessgym.store import TraceStore

    with TraceStore.open(store_url(source)) as store:
        # A database that was emptied or replaced is refused here, or its rows would pass for this run's.
        folder = RunFolder(Path(source))
        if folder.root.is_dir() and read_identity(folder) is not None:
            store.read(lambda conn: run_of(conn, folder))
        yield store


@contextmanager
def traced(source: str, rollout: str, policy: Sequence[str] | None = None) -> "Iterator[TracedRollout]":
    """Open one rollout of a source."""
    from harnessgym.traces.completions import Languages
    from harnessgym.traces.export import TracedRollout

    with opened(source) as store:
        yield TracedRollout(store, find(store, rollout), Languages.of(policy))


def find(store: "TraceStore", rollout: str) -> str:
    """The id of a rollout by its prefix. Raises `StoreError` unless exactly one matches."""
    from harnessgym.store.listing import newest_rollouts, rollouts_beginning

    if rollout == _LATEST:
        rollout_ids = [row.id for row in store.read(lambda conn: newest_rollouts(conn, 1))]
    else:
        rollout_ids = store.read(lambda conn: rollouts_beginning(conn, rollout))
    if len(rollout_ids) == 1:
        return rollout_ids[0]
    if rollout == _LATEST:
        raise StoreError("The store has no rollout yet.")
    if not rollout_ids:
        raise StoreError(f"No rollout begins with {rollout!r}. `harnessgym traces list SOURCE` lists them.")
    raise StoreError(
        f"More than one rollout begins with {rollout!r}, e.g. {rollout_ids[0]} and {rollout_ids[1]}. "
        "Give more of it; `harnessgym traces list SOURCE` lists them."
    )
