"""The processes of a run on a cluster, each in its own place, under the same supervisor as on one machine.

A thread polls every place for the status of its process, even while the supervisor is busy. All decisions are
made in the supervisor's calls, which wait only for the first places.

    placing ──► placed ──► starting ──► running ──► ended ──► placed     the process ended, its place remains
                                                      └─────► placing    the place was lost, request another
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from harnessgym.cluster.backend import ClusterBackend, Handle, wished
from harnessgym.cluster.process_host import HostInfo, StartRequest, release
from harnessgym.cluster.process_slot import KILLED, ProcessSlot, Role
from harnessgym.errors import ConfigError, HarnessGymError
from harnessgym.run_config.cluster import Need
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.supervisor.process_settings import Orders, outside_names
from harnessgym.supervisor.processes import Restarts, last_words

_TICK_S = 0.1
_END_S = 8.0
_LISTENERS: Mapping[Role, tuple[str, ...]] = {"proxy": ("fd", "control_fd"), "engine": ("fd",)}
"""Settings that get the descriptors of a process's sockets. Other roles have no sockets."""
_COMMANDS: Mapping[Role, str] = {
    "proxy": "proxy",
    "engine": "engine",
    "agent": "weights-agent",
    "node": "node",
    "trainer": "train-worker",
}
_TOLD: tuple[Role, ...] = ("engine", "agent", "node")
"""Roles whose settings contain the proxy's address."""


class Fleet:
    """See `harnessgym.supervisor.processes.Processes`."""

    def __init__(self, folder: RunFolder, config: RunConfig, ground: ClusterBackend) -> None:
        """Raises `ConfigError` for a run that one machine alone could run."""
        refuse_unshared(config)
        self.folder = folder
        self.config = config
        self.ground = ground
        self.orders: Orders | None = None
        self._berths: dict[str, ProcessSlot] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._pulse = threading.Thread(target=self._ask, name="pulse", daemon=True)
        self._told: list[str] = []
        self._ending: list[tuple[Handle, Future[Any], float]] = []
        self._recorded: object = None
        self._looked = 0.0
        self._unfit: list[float] = []
        """Times at which nodes were placed on machines where they cannot work."""

    @property
    def by_name(self) -> Mapping[str, ProcessSlot]:
        """See `Processes`."""
        return self._berths

    def end_leftovers(self) -> list[str]:
        """See `Processes`."""
        return self.ground.end_leftovers()

    def open(self) -> None:
        """Requests places for everything but the trainer and waits for them.

        Raises `ConfigError` if the cluster does not provide them in time.
        """
        self._pulse.start()
        self._claim("proxy", "proxy")
        for index in range(len(self.config.engine_policies)):
            self._claim(f"engine-{index}", "engine")
        for name in outside_names(self.config):
            self._claim(name, "agent")
        for index in range(wished(self.folder)):
            self._claim(f"node-{index}", "node")
        self._await("placed", lambda berth: berth.state == "placed")

    def lacks(self, backend: str) -> str | None:
        """Why a node's machine cannot use a sandbox backend; None if all can."""
        asked = [(berth, berth.handle.call("lacks", backend, self.config.code)) for berth in self._of("node")]
        for berth, answer in asked:
            if problem := self._told_by(berth, answer):
                return f"{berth.where}: {problem}"
        return None

    def _told_by(self, berth: ProcessSlot, answer: "Future[Any]") -> Any:
        """Waits for a place's answer. Raises `ConfigError` if the place is silent or lost."""
        try:
            error = answer.exception(self.config.cluster.wait_s)
        except TimeoutError:
            raise ConfigError(
                f"The place of {berth.name} ({berth.where}) has not answered for "
                f"{self.config.cluster.wait_s:g} s. Is its machine there? The same command starts again; "
                "cluster.wait_s says how long it waits."
            ) from None
        if error is not None:
            raise ConfigError(
                f"The place of {berth.name} ({berth.where}) was lost before the start ({_short(error)}). "
                "Is its machine there? The same command starts again."
            ) from error
        return answer.result()

    def start_all(self, orders: Orders) -> None:
        """See `Processes`."""
        self.orders = orders
        if orders.training:
            for name in orders.trainers:
                self._claim(name, "trainer")
        self._await("started", lambda berth: berth.state in ("running", "ended"))

    def tend(self) -> list[str]:
        """Advances every process, gives up silent places, lets nodes join and leave. Returns messages.

        Raises `HarnessGymError` if the polling thread has died or the cluster is out of reach for too long.
        """
        if not self._pulse.is_alive():
            raise HarnessGymError(
                "The supervisor can ask its places no more. The same command goes on from here."
            )
        self.ground.check()
        with self._lock:
            for berth in list(self._berths.values()):
                self._move_on(berth)
            self._follow_wish()
            self._see_off()
            self._record()
            messages = self._told
            self._told = []
        return messages

    def exited(self) -> list[tuple[str, int]]:
        """See `Processes`."""
        with self._lock:
            ended = [berth for berth in self._berths.values() if berth.state == "ended" and not berth.leaving]
            return [(berth.name, KILLED if berth.code is None else berth.code) for berth in ended]

    def kill(self, name: str) -> None:
        """See `Processes`."""
        with self._lock:
            self._berths[name].handle.call("stop")

    def restart(self, name: str) -> None:
        """Restarts a process in its place, or in another one if that is lost.

        Raises `HarnessGymError` after too many restarts.
        """
        # Wait before taking the lock: the polling thread needs it, and places that are not polled for a while
        # kill their processes.
        if self._berths[name].about is None:
            self.ground.check(wait=True)
        with self._lock:
            berth = self._berths[name]
            berth.again.add(name, self.log_path(name))
            berth.code = None
            if berth.about is None:
                self._place(berth)
            else:
                berth.state = "placed"

    def forget(self, name: str) -> None:
        """See `Processes`."""
        with self._lock:
            self._leave(self._berths.pop(name))
            self._record()

    def close(self) -> None:
        """Ends all processes and their places."""
        # The polling thread first: it uses the slots. Places get `_END_S` in all to end in good order, then
        # they are killed.
        self._over.set()
        if self._pulse.is_alive():
            self._pulse.join()
        for berth in self._berths.values():
            self._leave(berth)
        self._berths.clear()
        wait([answer for _, answer, _ in self._ending], timeout=_END_S)
        for handle, _, _ in self._ending:
            handle.kill()
        self._ending.clear()
        with contextlib.suppress(OSError):
            self._record()
        self.ground.close()

    def log_path(self, name: str) -> Path:
        """The file that collects the output of a process, wherever it runs."""
        return self.folder.logs / f"{name}.log"

    def last_words(self, name: str) -> str:
        """See `Processes`."""
        return last_words(self.log_path(name))

    def _of(self, role: Role) -> list[ProcessSlot]:
        return [berth for berth in self._berths.values() if berth.role == role]

    def _claim(self, name: str, role: Role) -> None:
        need: Need = getattr(self.config.cluster, role)
        need = need.times(self.config.trainer.processes) if role == "trainer" else need
        handle = self.ground.claim(name, need, _sockets(role))
        again = Restarts(self.config.supervisor.max_restarts)
        with self._lock:
            self._berths[name] = ProcessSlot(name, role, need, again, handle, self._about(handle, role))

    def _place(self, berth: ProcessSlot) -> None:
        """Requests another place for a process."""
        handle = self.ground.claim(berth.name, berth.need, _sockets(berth.role))
        berth.move(handle, self._about(handle, berth.role))

    def _about(self, handle: Handle, role: Role) -> "Future[Any]":
        shared = [str(self.folder.config_path)] if role in ("engine", "agent", "trainer") else []
        shared += (
            []
            if role == "node"
            else [str(Path(each.path) / "config.json") for each in self.config.all_policies]
        )
        backend = self.orders.sandbox if role == "node" and self.orders is not None else None
        return handle.call("about", shared, backend, self.config.code)

    def _await(self, what: str, there: Callable[[ProcessSlot], bool]) -> None:
        """Waits until `there` holds for all processes. Raises `ConfigError` that names the late ones."""
        deadline = time.monotonic() + self.config.cluster.wait_s
        while late := [berth.name for berth in self._berths.values() if not there(berth)]:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"After {self.config.cluster.wait_s:g} s these processes could not be {what}: "
                    f"{', '.join(late)}. The cluster has {self.ground.room()}. Add machines, ask for less "
                    "in [cluster], or raise cluster.wait_s."
                )
            self.tend()
            for name in [name for name, _ in self.exited() if self._berths[name].about is None]:
                self.restart(name)
            time.sleep(_TICK_S)

    def _ask(self) -> None:
        """Polls every place until `close`. Runs in a thread."""
        while not self._over.wait(_TICK_S):
            with self._lock:
                for berth in self._berths.values():
                    if berth.about is not None:
                        berth.see(self.log_path(berth.name))

    def _move_on(self, berth: ProcessSlot) -> None:
        if berth.lost(self.config.cluster.silent_s):
            self._lose(berth, f"has not answered for {self.config.cluster.silent_s:g} s")
        elif berth.leaving and berth.state in ("placing", "placed", "ended"):
            self._leave(self._berths.pop(berth.name))
            self._told.append(f"The {berth.name} process has left.")
        elif berth.state == "placing" and berth.answer.done():
            if (error := berth.answer.exception()) is not None:
                self._lose(berth, f"could not be made ({_short(error)})")
            else:
                self._arrive(berth, berth.answer.result())
        elif berth.state == "starting" and berth.answer.done():
            self._started(berth)
        elif berth.state == "placed" and (order := self._order(berth)) is not None:
            berth.state = "starting"
            berth.starts = berth.starts + 1
            berth.told = self._proxy
            berth.answer, berth.ordered = berth.handle.call("start", order), time.monotonic()
        elif berth.state == "running" and berth.role in _TOLD and berth.told != self._proxy:
            berth.told = self._proxy
            self._told.append(f"The proxy has moved: the {berth.name} process is told where it is.")
            berth.handle.call("stop")

    def _arrive(self, berth: ProcessSlot, about: HostInfo) -> None:
        """Handles a new place.

        A node that cannot work on its machine leaves if others remain. Otherwise raises `ConfigError`.
        """
        berth.about, berth.state, berth.heard = about, "placed", time.monotonic()
        problem = _problem(about)
        if problem is None:
            return
        others = [each for each in self._of("node") if each is not berth and not each.leaving]
        if berth.role != "node" or self.orders is None or not others:
            raise ConfigError(
                f"The {berth.name} process cannot run on {about.name} ({about.host}): {problem}"
            )
        self._told.append(
            f"The {berth.name} process cannot run on {about.name} ({about.host}), and leaves: {problem}"
        )
        self._unfit.append(time.monotonic())
        berth.leaving = True

    def _started(self, berth: ProcessSlot) -> None:
        """Handles the answer to a start request. An error may come from the place or from the network."""
        # The process may run even if the answer is an error. The place is given up only after `silent_s`,
        # when it has ended a process whose place is not polled; otherwise the process could run twice.
        error = berth.answer.exception()
        if error is None:
            berth.pid = berth.answer.result()
            berth.state = "running"
        elif time.monotonic() - berth.ordered > self.config.cluster.silent_s:
            self._lose(berth, f"could not be told to start ({_short(error)})")

    def _order(self, berth: ProcessSlot) -> StartRequest | None:
        """The request that starts a process; None while its settings are not known yet."""
        orders = self.orders
        proxy = self._proxy
        if orders is None or (berth.role in _TOLD and not proxy):
            return None
        config: dict[str, Any] | None = None
        if berth.role == "proxy":
            settings = orders.proxy()
        elif berth.role == "engine":
            settings = orders.engine(berth.name, berth.urls[0], proxy[1])
        elif berth.role == "agent":
            settings = orders.weights_agent(berth.name, proxy[1])
        elif berth.role == "node":
            settings = orders.node(berth.name, proxy[1], proxy[0])
            config = self.config.model_dump(mode="json")
        else:
            settings = orders.trainer(berth.name)
        return StartRequest(
            _COMMANDS[berth.role],
            settings,
            _LISTENERS.get(berth.role, ()),
            config,
            self.config.supervisor.threads,
        )

    @property
    def _proxy(self) -> tuple[str, ...]:
        """The proxy's URLs, for harnesses and for control; empty while it has no place."""
        berth = self._berths.get("proxy")
        return () if berth is None else berth.urls

    def _lose(self, berth: ProcessSlot, why: str) -> None:
        self._told.append(f"The place of {berth.name} {why}: {berth.where}. It is looked for elsewhere.")
        berth.handle.kill()
        berth.about = None
        berth.code = KILLED
        berth.state = "ended"

    def _follow_wish(self) -> None:
        """Lets nodes join or leave until there are as many as desired.

        A node that could not work on its machine is not replaced for `cluster.wait_s`, because the next one
        may get the same machine.
        """
        if self.orders is None or time.monotonic() - self._looked < 1.0:
            return
        self._looked = time.monotonic()
        staying = [berth for berth in self._of("node") if not berth.leaving]
        wanted = wished(self.folder)
        names = {berth.name for berth in self._of("node")}
        unused = (name for index in range(wanted + len(names)) if (name := f"node-{index}") not in names)
        self._unfit = [when for when in self._unfit if self._looked - when < self.config.cluster.wait_s]
        for name in list(unused)[: max(0, wanted - len(staying) - len(self._unfit))]:
            self._claim(name, "node")
            self._told.append(f"The {name} process joins.")
        # The highest numbers leave first. The name of a leaving node stays taken until its rollouts are done.
        for berth in sorted(staying, key=lambda berth: int(berth.name.partition("-")[2]))[wanted:]:
            berth.leaving = True
            self._told.append(f"The {berth.name} process leaves when the rollouts that it has are done.")
            if berth.about is not None:
                berth.handle.call("drain")

    def _leave(self, berth: ProcessSlot) -> None:
        """Ends a place that is no longer needed, without waiting for it."""
        if berth.about is None:
            berth.handle.kill()
        else:
            self._ending.append((berth.handle, berth.handle.call("end"), time.monotonic() + _END_S))

    def _see_off(self) -> None:
        """Releases places that have ended or take too long to end."""
        for handle, answer, deadline in list(self._ending):
            if answer.done() or time.monotonic() > deadline:
                handle.kill()
                self._ending.remove((handle, answer, deadline))

    def _record(self) -> None:
        """Writes `places.json`, which shows people where each process runs."""
        rows = {
            berth.name: {"state": _state(berth), "where": berth.where, "restarts": berth.restarts}
            for berth in self._sorted()
        }
        if rows != self._recorded:
            self._recorded = rows
            write_json(self.folder.root / "places.json", rows)

    def _sorted(self) -> Iterable[ProcessSlot]:
        return sorted(self._berths.values(), key=lambda berth: berth.name)


def _sockets(role: Role) -> int:
    """The number of sockets on which a process listens."""
    return len(_LISTENERS.get(role, ()))


def _problem(about: HostInfo) -> str | None:
    """Why a process of the run cannot work on a machine; None if it can."""
    if about.release != release():
        return f"it has {about.release}, the supervisor {release()}. Install the same on all machines."
    if about.missing:
        return (
            f"there is no {', '.join(about.missing)}. The run's folder and the policy must be on a disk "
            "that all machines share, under the same path."
        )
    return about.lacks


def _short(error: BaseException) -> str:
    """An error's type and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _state(berth: ProcessSlot) -> str:
    return "leaving" if berth.leaving else berth.state


def refuse_unshared(config: RunConfig) -> None:
    """Raises `ConfigError` for settings that do not work on several machines."""
    if config.store.url is None or not config.store.url.startswith("postgresql"):
        raise ConfigError(
            "store.url: several machines cannot share a SQLite file. Give a PostgreSQL database of this "
            "run's own, e.g. "
            '"postgresql+psycopg://USER@HOST/DATABASE".'
        )
    if config.node.serve:
        raise ConfigError(
            "node.serve: nodes of a cluster come and go, and serve no rollouts. Leave it empty."
        )
