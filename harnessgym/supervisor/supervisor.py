"""The supervisor of a run: phases, processes, restarts.

Its whole state is in the run's folder and store. A supervisor that starts after another was killed ends the
leftover processes and resumes the run.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection

from harnessgym import disk
from harnessgym.errors import HarnessGymError, StoreError
from harnessgym.process import interruption_deferred, undisturbed
from harnessgym.rollout.plan import EVALUATIONS
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.run_identity import run_of
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.store import TraceStore, policies, rollouts, runs, workers
from harnessgym.store.runs import RunStatus
from harnessgym.supervisor.local import LocalProcesses
from harnessgym.supervisor.policy_calls import PolicyCalls
from harnessgym.supervisor.preparation import Notify, choose_sandbox
from harnessgym.supervisor.process_settings import LaunchPlan
from harnessgym.supervisor.processes import FATAL_EXIT, Processes
from harnessgym.supervisor.silence import SilenceWatch
from harnessgym.supervisor.stall import StallWatch
from harnessgym.traces.token_accounting import exclude_rest

_TICK_S = 0.1
_CLEANUP_S = 3.0


class Supervisor:
    """Takes one run to its end."""

    def __init__(self, folder: RunFolder, notify: Notify = print, children: Processes | None = None) -> None:
        """The folder's run must have been started (`start_run`). `children` default to local processes."""
        self.folder, self.config, self.notify = folder, folder.config(), notify
        self.store = TraceStore.open(folder.store_url(), synchronous=self.config.store.synchronous)
        self.children: Processes = children or LocalProcesses(folder, self.config)
        self.run_id, self.policy_ids = self._registered()
        self.policy_id = self.policy_ids[self.config.policy.name]
        self.stages = self._stages()
        self._saved = 0.0

    @property
    def status(self) -> RunStatus:
        """The run's present phase."""
        run = self.store.read(partial(runs.get, run_id=self.run_id))
        assert run is not None
        return run.status

    def serve(self, watch: Callable[["Supervisor"], None]) -> RunStatus:
        """Run until done, calling `watch` about ten times a second.

        Raises `HarnessGymError` if the run cannot continue.
        """
        if self.status == "done":
            self._close_account()  # its supervisor may have been killed before
            return "done"
        with contextlib.ExitStack() as cleanup:
            with (
                interruption_deferred()
            ):  # from the first thing that is taken over or made, there is a cleanup
                cleanup.callback(self._end)
                self._take_over()
            self._serve(watch)
        return self.status

    def _serve(self, watch: Callable[["Supervisor"], None]) -> None:
        silence = SilenceWatch(
            self.store, self.run_id, self.children, self.config.supervisor.silent_s, self.folder.silent_path
        )
        stall = StallWatch(
            self.store, self.run_id, self.policy_id, self.children, self.config.supervisor.stall_s
        )
        reach = PolicyCalls(self.store, self.policy_ids)
        silence.clear()  # of an earlier supervisor
        try:
            self.children.open()
            self._start_all()
            while (status := self.status) != "done":
                started = time.monotonic()
                for message in self.children.reconcile():
                    self.notify(message)
                for message in silence.look():
                    self.notify(message)
                # Silent processes are killed first, so that this same pass restarts them.
                self._check_processes(status)
                self._advance(status)
                watch(self)
                if stalled := stall.look(status):
                    self.notify(stalled)
                for message in reach.look():
                    self.notify(message)
                time.sleep(_TICK_S)
                self._count(status, time.monotonic() - started)
            for message in reach.look():  # the last step may have been taken since
                self.notify(message)
        except (HarnessGymError, OSError) as error:
            self._refuse_full_disk(error)
            self.store.write(lambda conn: runs.set_status(conn, self.run_id, "failed"))
            raise
        finally:
            silence.clear()

    def _take_over(self) -> None:
        """End what an earlier supervisor left, and expire its leases."""
        for name in self.children.end_leftovers():
            self.notify(f"Ended the {name} process that an earlier supervisor of this run had left.")
        self.store.write(partial(rollouts.expire, run_id=self.run_id))
        self.store.write(partial(workers.retire, run_id=self.run_id))
        if self.status == "failed":
            self.store.write(lambda conn: runs.set_status(conn, self.run_id, self._resumed_status()))

    def _end(self) -> None:
        """End every process, then remove the workspaces and retire the workers."""
        with undisturbed():
            self.children.close()
            self._remove_workspaces()
            with contextlib.suppress(OSError, StoreError):
                self.store.write(partial(workers.retire, run_id=self.run_id))
                self._count("", 0.0, save=True)
                if self.status == "done":
                    self._close_account()

    def _close_account(self) -> None:
        """Exclude the tokens that the node's last rollouts sampled after the run was done."""
        self.store.write(partial(exclude_rest, run_id=self.run_id))

    def _remove_workspaces(self) -> None:
        """Remove the workspaces. Retries for a while: processes of a killed node may still write there."""
        deadline = time.monotonic() + _CLEANUP_S
        while self.folder.workspaces.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                Workspace(self.folder.workspaces, None, 0).remove()
                return
            time.sleep(_TICK_S)

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _registered(self) -> tuple[str, dict[str, str]]:
        """The run's id and its policies' ids by name, the first one first."""
        run = self.store.read(partial(run_of, folder=self.folder))
        if run is None:
            raise StoreError(f"{self.folder.root} has no run in its store; `harnessgym train` starts one.")
        names = [policy.name for policy in self.config.all_policies]
        return run.id, self.store.write(
            lambda conn: {name: policies.register(conn, run.id, name) for name in names}
        )

    def _start_all(self) -> None:
        sandbox = choose_sandbox(self.config, self.notify, self.children.lacks)
        write_json(self.folder.root / "sandbox.json", sandbox)
        key = secrets.token_urlsafe(24)
        training = self.status in ("evaluating_before", "training")
        ids = self.policy_ids
        self.children.start_all(
            LaunchPlan(self.folder, self.config, self.run_id, self.policy_id, key, sandbox, training, ids)
        )

    def _check_processes(self, status: RunStatus) -> None:
        for name, code in self.children.exited():
            if name.startswith("trainer") and code == 0:
                self.children.forget(name)
                continue
            # A full disk kills processes in many ways and a restart would not help: name that cause first.
            self._refuse_full_disk(None)
            if code == FATAL_EXIT:
                words = self.children.log_tail(name).removeprefix("harnessgym: ")
                raise HarnessGymError(
                    f"The {name} process gave up (its log: {self.children.log_path(name)}): {words}"
                )
            self.notify(
                f"The {name} process ended (status {code}) while {status.replace('_', ' ')}; starting it "
                "again."
            )
            self.store.write(partial(workers.set_state, worker_id=name, state="dead"))  # if it was one
            if name.startswith("node"):
                self.store.write(partial(rollouts.expire, run_id=self.run_id, node=name))
            self.children.restart(name)

    def _refuse_full_disk(self, error: BaseException | None) -> None:
        """Raises `StoreError` if the run's disk is full, because that explains any other error."""
        if shortage := disk.shortage(self.folder.root):
            raise StoreError(shortage) from error

    def _advance(self, status: RunStatus) -> None:
        """Enter the next phase once this one is over."""
        if status in EVALUATIONS:
            done = self.store.read(
                lambda conn: [rollouts.group_states(conn, self.run_id, p) for p in EVALUATIONS[status]]
            )
            if any(not states or states.get("open", 0) for states in done):
                return
        elif status == "training" and any(name.startswith("trainer") for name in self.children.by_name):
            return
        following: dict[str, RunStatus] = {
            "evaluating_before": "training",
            "training": "evaluating_after" if self.config.evaluation.tasks else "done",
            "evaluating_after": "done",
        }
        self.store.write(partial(self._enter, status=following[status]))

    def _enter(self, conn: Connection, status: RunStatus) -> None:
        """Set the phase. In the same transaction as `done`, tokens that were not trained are excluded."""
        if status == "done":
            exclude_rest(conn, self.run_id)
        runs.set_status(conn, self.run_id, status)

    def _resumed_status(self) -> RunStatus:
        """The phase in which a failed run resumes."""
        newest = [
            self.store.read(partial(policies.latest, policy_id=each)) for each in self.policy_ids.values()
        ]
        trained = all(latest is not None and latest.step >= self.config.trainer.steps for latest in newest)
        if self.config.evaluation.tasks and trained:
            return "evaluating_after"
        started = self.store.read(lambda conn: rollouts.group_states(conn, self.run_id, "train"))
        return "training" if started or not self.config.evaluation.tasks else "evaluating_before"

    def _stages(self) -> dict[str, float]:
        try:
            loaded: dict[str, float] = json.loads((self.folder.root / "stages.json").read_text())
        except FileNotFoundError:
            return {}
        return loaded

    def _count(self, status: str, seconds: float, *, save: bool = False) -> None:
        if status:
            self.stages[status] = self.stages.get(status, 0.0) + seconds
        if save or time.monotonic() - self._saved > 1.0:
            self._saved = time.monotonic()
            write_json(self.folder.root / "stages.json", self.stages)
