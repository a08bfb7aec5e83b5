"""The processes of a run on this machine: children that inherit the supervisor's sockets."""

from harnessgym.process import interruption_deferred
from harnessgym.registry import load
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.supervisor.children import Children, ChildSpec
from harnessgym.supervisor.process_settings import LaunchPlan
from harnessgym.supervisor.sockets import Sockets, url_of


class LocalProcesses(Children):
    """See `harnessgym.supervisor.processes.Processes`."""

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        super().__init__(folder, config.supervisor.threads, config.supervisor.max_restarts)
        self._engines = len(config.engine_policies)
        self._services = ["proxy", "engine", "node", "train-worker"]
        if not self._engines:
            self._services.remove("engine")
        self._warm = config.supervisor.fork
        self._sockets: Sockets | None = None

    def open(self) -> None:
        """Open the run's sockets. Connections queue there while a process restarts."""
        if self._warm:
            self.load(self._services)
        with interruption_deferred():
            self._sockets = Sockets(self._engines, self.folder.root / "sockets.json")

    def lacks(self, backend: str) -> str | None:
        """See `Processes`."""
        problem: str | None = load("sandbox", backend).unavailable()
        return problem

    def start_all(self, launch_plan: LaunchPlan) -> None:
        """See `Processes`."""
        sockets = self._sockets
        assert sockets is not None
        fds = (sockets.tcp.fileno(), sockets.unix.fileno(), sockets.control.fileno())
        listening = dict(zip(("fd", "uds_fd", "control_fd"), fds, strict=True))
        self.start(ChildSpec("proxy", "proxy", launch_plan.proxy() | listening, fds))
        for name, listener in zip(launch_plan.engines, sockets.engines, strict=True):
            engine = launch_plan.engine(name, url_of(listener), sockets.control_url) | {
                "fd": listener.fileno()
            }
            self.start(ChildSpec(name, "engine", engine, (listener.fileno(),)))
        for name in launch_plan.outside:
            self.start(ChildSpec(name, "weights-agent", launch_plan.weights_agent(name, sockets.control_url)))
        node = launch_plan.node("node", sockets.control_url, sockets.proxy_url, sockets.proxy_folder)
        self.start(ChildSpec("node", "node", node))
        if launch_plan.training:
            for name in launch_plan.trainers:
                self.start(ChildSpec(name, "train-worker", launch_plan.trainer(name)))

    def close(self) -> None:
        """See `Processes`."""
        self.end_all()
        if self._sockets is not None:
            self._sockets.close()
