"""The `[cluster]` section of a run: how `harnessgym cluster` places its processes."""

from pydantic import Field

from harnessgym.config import Config


class Need(Config):
    """Resources that Ray must have free on a machine for one process of a kind."""

    cpus: float = Field(1.0, ge=0)
    """CPU cores."""
    gpus: float = Field(0.0, ge=0)
    """GPUs. The process sees only its own."""
    memory_mb: int = Field(0, ge=0)
    """Memory that Ray counts as used. It is not a limit."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Other Ray resources, as named in `ray start --resources`. They select machines."""

    def times(self, processes: int) -> "Need":
        """The resources of several processes on one machine."""
        # `resources` name a machine, not an amount, so they are not multiplied.
        more = {name: getattr(self, name) * processes for name in ("cpus", "gpus", "memory_mb")}
        return self.model_copy(update=more)


class ClusterSection(Config):
    """Where `harnessgym cluster` places the processes of a run. `harnessgym train` does not read it."""

    address: str = "auto"
    """Address of Ray's head, `HOST:PORT`; auto finds the cluster that this machine belongs to."""
    nodes: int = Field(1, gt=0)
    """Nodes at the start; `harnessgym cluster nodes` changes that later. Each runs up to
    `node.max_running` harnesses."""
    spread: bool = True
    """Whether to spread processes evenly over machines. Otherwise Ray fills one machine after another."""
    silent_s: float = Field(20.0, ge=1)
    """A process slot that has not answered for this long is given up. It ends its own process after half this
    time without a request from the supervisor, so the process is gone by then."""
    wait_s: float = Field(120.0, gt=0)
    """Seconds that the start waits for slots for all processes."""
    proxy: Need = Need()
    """Resources of the proxy."""
    engine: Need = Need()
    """Resources of each of the `engine.workers` engines."""
    agent: Need = Need(cpus=0)
    """Resources of the weight agent of each outside engine."""
    node: Need = Need()
    """Resources of each node, including its harnesses."""
    trainer: Need = Need()
    """Resources of each of the trainer's `trainer.processes`, which share a machine. `resources` counts for
    all of them together."""
