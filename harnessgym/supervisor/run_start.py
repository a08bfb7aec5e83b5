"""Starts a run: a new one, one that resumes, or one that is lengthened.

Spawns nothing. The folder must be claimed first (`claim_folder`), because the run's processes read what is
written here.
"""

from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Literal, TypeAlias

from sqlalchemy import Connection

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.registry import names
from harnessgym.rollout.plan import EVALUATIONS
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.run_identity import enter_run, find_run, forget_processes, has_begun, record_run
from harnessgym.store import TraceStore, ledger, policies, rollouts, runs
from harnessgym.store.runs import RunRow, RunStatus
from harnessgym.supervisor.preparation import NOTHING_TO_EXTEND, Notify, essence, refuse_changes, resolved

Kind: TypeAlias = Literal["starts", "continues", "extends", "finished"]
_RESULTS = ("summary.json", "curve.png")


@dataclass(frozen=True, slots=True)
class RunStart:
    """The run of a start, and what the start does with it."""

    run_id: str
    kind: Kind
    step: int
    """Steps taken so far."""
    steps: int
    """Steps the run will have."""
    before: int
    """Steps it had before this start; different from `steps` if it is extended."""

    def __str__(self) -> str:
        if self.kind == "starts":
            return f"Starts run {self.run_id}: {_counted(self.steps)}."
        if self.kind == "extends":
            lengths = f"from {self.before} to {_counted(self.steps)}"
            return f"Extends run {self.run_id} {lengths}; it goes on at step {self.step}."
        if self.kind == "finished":
            return (
                f"Run {self.run_id} has finished its {_counted(self.steps)}: nothing is run. To lengthen "
                "it, give a larger --trainer.steps, and --extend."
            )
        return f"Continues run {self.run_id} at step {self.step} of {self.steps}."


def _counted(steps: int) -> str:
    return f"{steps} step{'s' * (steps != 1)}"


def start_run(
    folder: RunFolder, config: RunConfig, notify: Notify = lambda _: None, *, extend: bool = False
) -> RunStart:
    """Enter the run of a folder from `prepare` in its database, or find it there. `extend` lengthens it.

    Raises `ConfigError` if the database holds a different run, if it no longer holds the folder's run, or if
    the configuration is not the run's.
    """
    config = resolved(config)
    older = TraceStore.outdated(folder.store_url(config))
    if older is not None:  # another folder's run is refused before its database is migrated
        with older:
            _find(folder, older, config)
    with TraceStore.create(folder.store_url(config), synchronous=config.store.synchronous) as store:
        run = _find(folder, store, config)
        if run is None:
            return _enter(folder, store, config, extend=extend)
        before = _refuse_other(folder, config, run, extend=extend)
        _settle_in(folder, store, config, run)
        step = store.read(lambda conn: _trained_steps(conn, run.id))
        if before < config.trainer.steps:
            _set_results_aside(folder, before)
            store.write(lambda conn: _extend(conn, run, config, before))
    # Written after the store: if this is interrupted in between, the next start reads the new length from the
    # store. In the other order it would take the old evaluation for that of the longer run.
    if folder.config() != config:
        write_json(folder.config_path, config.model_dump(mode="json"), mode=0o600)
    kind: Kind = "finished" if run.status == "done" else "continues"
    kind = "extends" if before < config.trainer.steps else kind
    if step < config.trainer.steps:
        _say_missing_checkpoint(folder, config, step, notify)
    return RunStart(run.id, kind, step, config.trainer.steps, before)


def _find(folder: RunFolder, store: TraceStore, config: RunConfig) -> RunRow | None:
    try:
        return find_run(folder, store, partial(_matches, config=config))
    except ConfigError:
        if not has_begun(folder):  # another configuration may be given next time
            folder.config_path.unlink(missing_ok=True)
        raise


def _enter(folder: RunFolder, store: TraceStore, config: RunConfig, *, extend: bool) -> RunStart:
    """Enter a new run, or one whose first start was interrupted before it reached the database."""
    if extend:
        raise ConfigError(NOTHING_TO_EXTEND.format(folder.root))
    write_json(folder.config_path, config.model_dump(mode="json"), mode=0o600)
    run = enter_run(folder, store, config.name, partial(_insert, config=config))
    return RunStart(run.id, "starts", 0, config.trainer.steps, config.trainer.steps)


def _insert(conn: Connection, run_id: str, config: RunConfig) -> None:
    first: RunStatus = "evaluating_before" if config.evaluation.tasks else "training"
    runs.add(conn, config.name, config.model_dump(mode="json"), version("harnessgym-rl"), first, run_id)


def _matches(run: RunRow, config: RunConfig) -> bool:
    """Whether a run that the folder does not name has the same configuration."""
    try:
        stored = validate(RunConfig, run.config, "the database")
    except ConfigError:
        return False
    return essence(stored, but_for_steps=True) == essence(config, but_for_steps=True)


def _refuse_other(folder: RunFolder, config: RunConfig, run: RunRow, *, extend: bool) -> int:
    """The run's recorded steps. Raises `ConfigError` if the configuration differs from the database's."""
    try:
        stored = validate(RunConfig, run.config, f"run {run.id}")
    except ConfigError as error:
        raise ConfigError(f"{error} Another release made that run. Give another --folder.") from error
    refuse_changes(stored, config, folder.root, extend=extend)
    return stored.trainer.steps


def _settle_in(folder: RunFolder, store: TraceStore, config: RunConfig, run: RunRow) -> None:
    """Record where the run's folder is. It may have been moved or copied."""
    store.read(partial(forget_processes, folder=folder, run=run))

    def relocate(conn: Connection) -> None:
        ids = policies.of_run(conn, run.id)
        for policy in config.all_policies:
            if policy.name in ids:
                own = "" if policy.name == config.policy.name else policy.name
                policies.relocate(conn, ids[policy.name], RunFolder(folder.root, own).versions)

    store.write(relocate)
    record_run(folder, run)


def _trained_steps(conn: Connection, run_id: str) -> int:
    """Steps of the policy furthest behind."""
    newest = [policies.latest(conn, policy_id) for policy_id in policies.of_run(conn, run_id).values()]
    return min((0 if latest is None else latest.step for latest in newest), default=0)


def _extend(conn: Connection, run: RunRow, config: RunConfig, before: int) -> None:
    """Return the run to training. Idempotent.

    The rollouts of its evaluation after training stay, under a purpose that names the steps: the next
    evaluation is of other weights, and a summary must not mix them.
    """
    runs.lock(conn, run.id)
    for purpose in EVALUATIONS["evaluating_after"]:
        rollouts.retire(conn, run.id, purpose, f"{purpose}@{before}")
    ledger.readmit_rest(conn, run.id)
    runs.set_config(conn, run.id, config.model_dump(mode="json"))
    if run.status in ("evaluating_after", "done"):
        runs.set_status(conn, run.id, "training")


def _set_results_aside(folder: RunFolder, steps: int) -> None:
    """Rename the results of a run before it is lengthened, so that they name their number of steps."""
    for name in _RESULTS:
        path = folder.root / name
        if path.exists():
            path.rename(path.with_stem(f"{path.stem}-{steps}-steps"))


def _say_missing_checkpoint(folder: RunFolder, config: RunConfig, step: int, notify: Notify) -> None:
    """Warn if one of our own algorithms has no checkpoint to resume from, only the published weights."""
    if step == 0 or config.trainer.algorithm not in names("algorithm"):
        return
    for policy in config.all_policies:
        own = RunFolder(folder.root, "" if policy.name == config.policy.name else policy.name)
        if not any(own.checkpoints.glob("step-*/state.pt")):
            notify(
                f"There is no checkpoint in {own.checkpoints}: training goes on from the published weights "
                f"of {policy.name!r}, with a fresh optimizer."
            )
