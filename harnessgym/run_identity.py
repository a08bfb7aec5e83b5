"""Tells which run a folder belongs to, and whether its database still holds that run.

`run.json` in the folder has the run's id. A run is entered in three writes. After a kill between any two of
them the next start completes the entry:

    run.json, in_store = false  ──►  a row of `runs` under that id  ──►  run.json, in_store = true

Before the last write an empty database means an interrupted start. After it, it means that the database was
emptied.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection

from harnessgym.errors import ConfigError
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore, new_id, runs
from harnessgym.store.backend import file_of, shown
from harnessgym.store.runs import RunRow

_SERVED = ("versions", "checkpoints", "metrics.jsonl", "sandbox.json", "results.jsonl")
"""Files that a folder has once its run was served."""
_OF_PROCESSES = ("processes.json", "places.json", "sockets.json")
"""Files that name processes and sockets. They do not apply to a copy of the folder."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The content of `run.json`."""

    id: str
    name: str
    created_at: float
    folder: str
    """Path of the folder when its run was last started."""
    in_store: bool
    """Whether the run was entered in the database."""


def read_identity(folder: RunFolder) -> RunIdentity | None:
    """Read a folder's `run.json`; None if there is none. Raises `ConfigError` if it cannot be read."""
    path = folder.identity_path
    try:
        return RunIdentity(**json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}). Restore it from a copy, or give another --folder."
        ) from error


def has_begun(folder: RunFolder) -> bool:
    """Whether the folder has files of a started run, also of one by a release without `run.json`."""
    return folder.identity_path.exists() or any((folder.root / name).exists() for name in _SERVED)


def run_of(conn: Connection, folder: RunFolder) -> RunRow | None:
    """The run of a folder, from its database; None if it has none yet.

    Raises `ConfigError` if the database no longer holds it.
    """
    identity = read_identity(folder)
    if identity is None:
        return runs.only(conn)
    run = runs.get(conn, identity.id)
    if run is None and identity.in_store:
        raise ConfigError(_lost(folder, identity, runs.all_of(conn)))
    return run


def find_run(folder: RunFolder, store: TraceStore, could_be: Callable[[RunRow], bool]) -> RunRow | None:
    """Find the run of a folder that is about to start; None if it must be created.

    For a folder without `run.json`, from an earlier release, `could_be` tells whether a run may be its own.
    Raises `ConfigError` if the database holds another folder's run, several runs, or no longer this run.
    """
    identity = read_identity(folder)
    held = store.read(runs.all_of)
    if identity is None:
        return _find_unidentified(folder, store, held, could_be)
    own = next((run for run in held if run.id == identity.id), None)
    if own is None and identity.in_store:
        raise ConfigError(_lost(folder, identity, held))
    if own is None and held:
        raise ConfigError(_database_in_use(store, held))
    if len(held) > 1:
        raise ConfigError(_several(store, held, own))
    if own is not None:
        _refuse_copy(folder, identity, store)
    return own


def enter_run(
    folder: RunFolder, store: TraceStore, name: str, insert: Callable[[Connection, str], object]
) -> RunRow:
    """Enter a new run, or complete an interrupted entry. `insert` adds the run's row under an id.

    Raises `ConfigError` if another folder entered a run in this database in the meantime.
    """
    fresh = RunIdentity(new_id(), name, time.time(), str(folder.root), in_store=False)
    identity = read_identity(folder) or fresh
    # First the folder, then the database: a kill in between leaves an id that the next start completes.
    _write(folder, identity)

    def enter(conn: Connection) -> list[RunRow]:
        runs.lock_all(conn)  # two folders that start at the same moment must see each other
        if not runs.all_of(conn):
            insert(conn, identity.id)
        return runs.all_of(conn)

    held = store.write(enter)
    if [run.id for run in held] != [identity.id]:
        folder.identity_path.unlink()
        raise ConfigError(_database_in_use(store, held))
    record_run(folder, held[0])
    return held[0]


def record_run(folder: RunFolder, run: RunRow) -> None:
    """Record in the folder that its database holds this run."""
    identity = RunIdentity(run.id, run.name, run.created_at, str(folder.root), in_store=True)
    if read_identity(folder) != identity:
        _write(folder, identity)


def forget_processes(conn: Connection, folder: RunFolder, run: RunRow) -> None:
    """Remove the process files of a folder that was moved or copied.

    The processes of the original folder may be alive, and this run must not end them.
    """
    identity = read_identity(folder)
    weights = runs.weights_path(conn, run.id)
    before = identity.folder if identity else str(weights.parent.parent) if weights else str(folder.root)
    if before != str(folder.root):
        for name in _OF_PROCESSES:
            (folder.root / name).unlink(missing_ok=True)


def refuse_run_folder(root: Path, hint: str) -> None:
    """Raises `ConfigError` if a folder belongs to a run, whose database is for that run alone."""
    folder = RunFolder(root)
    if folder.identity_path.exists() or folder.config_path.exists():
        raise ConfigError(f"{root} is the folder of a run, and its database holds that run alone. {hint}")


def _find_unidentified(
    folder: RunFolder, store: TraceStore, held: list[RunRow], could_be: Callable[[RunRow], bool]
) -> RunRow | None:
    """Find the run of a folder without `run.json`: None for a new one, or an earlier release's."""
    if not held:
        served = [name for name in _SERVED if (folder.root / name).exists()]
        if served:
            raise ConfigError(
                f"{folder.root} holds files of a run ({', '.join(served)}), and the database "
                f"{shown(store.url)} is empty. Restore the database from a copy, or give another --folder "
                "to start a new run."
            )
        return None
    if len(held) > 1:
        raise ConfigError(_several(store, held, None))
    if not could_be(held[0]) or not _is_own(folder, store, held[0]):
        raise ConfigError(_database_in_use(store, held))
    return held[0]


def _is_own(folder: RunFolder, store: TraceStore, run: RunRow) -> bool:
    """Whether a run that no `run.json` names is this folder's: its newest version is here and only here.

    A database inside the folder was copied with it, and so were the versions.
    """
    weights = store.read(lambda conn: runs.weights_path(conn, run.id))
    inside = _is_inside(folder, store.url)
    if weights is None:
        return inside
    if not (folder.versions / weights.name).exists():
        return False
    return inside or weights.parent == folder.versions or not weights.exists()


def _refuse_copy(folder: RunFolder, identity: RunIdentity, store: TraceStore) -> None:
    """Raises `ConfigError` if two folders would continue one run.

    A copy with its database inside is a separate run.
    """
    original = RunFolder(Path(identity.folder))
    if original.root == folder.root or _is_inside(folder, store.url):
        return
    other = read_identity(original)
    if other is not None and other.id == identity.id:
        raise ConfigError(
            f"{folder.root} is a copy of {original.root}, and both are folders of run {identity.id} in "
            f"{shown(store.url)}. Continue it with --folder {original.root}; or remove that folder, if the "
            "copy is to take its place."
        )


def _is_inside(folder: RunFolder, url: str) -> bool:
    """Whether a database is a file in the folder, so that it is copied with it."""
    file = file_of(url)
    return file is not None and file.resolve().is_relative_to(folder.root)


def _write(folder: RunFolder, identity: RunIdentity) -> None:
    write_json(folder.identity_path, asdict(identity))


def _lost(folder: RunFolder, identity: RunIdentity, held: list[RunRow]) -> str:
    run = _named(identity.id, identity.name, identity.created_at)
    holds = f"it holds {', '.join(map(_title, held))}" if held else "it is empty"
    return (
        f"{folder.root} is the folder of {run}, which its database no longer holds: {holds}. Restore the "
        "database from a copy, or give another --folder to start a new run."
    )


def _database_in_use(store: TraceStore, held: list[RunRow]) -> str:
    if len(held) > 1:
        return _several(store, held, None)
    weights = store.read(lambda conn: runs.weights_path(conn, held[0].id))
    owner = None if weights is None else weights.parent.parent
    where = f" of the folder {owner}" if owner else ""
    go_on = f", or continue that run with --folder {owner}" if owner else ""
    return (
        f"The database {shown(store.url)} holds another run already: {_title(held[0])}{where}. One "
        f"database holds one run. Give this run a database of its own (--store.url){go_on}."
    )


def _several(store: TraceStore, held: list[RunRow], own: RunRow | None) -> str:
    url = shown(store.url)
    problem = (
        f"The database {url} holds {len(held)} runs: {', '.join(map(_title, held))}. One database holds "
        "one run."
    )
    if own is None:
        return f"{problem} Give this run a database of its own (--store.url)."
    return (
        f"{problem} Move run {own.id} to a database of its own: `harnessgym store export {url} {own.id} "
        "run.hgrun`, `harnessgym store import run.hgrun NEW_URL`; then give --store.url NEW_URL."
    )


def _title(run: RunRow) -> str:
    return _named(run.id, run.name, run.created_at)


def _named(run_id: str, name: str, created_at: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(created_at))
    return f"run {run_id} ({name!r}, started {when})"
