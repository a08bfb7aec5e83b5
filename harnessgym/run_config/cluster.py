"""The `[cluster]` section of a run: how `harnessgym cluster` places its processes."""

from pydantic import Field

from harnessgym.config import Config


class Need(Config):
    """What Ray must have free on a machine for one process of a kind."""

    cpus: float = Field(1.0, ge=0)
    """Processors."""
    gpus: float = Field(0.0, ge=0)
    """GPUs; the process sees only its own."""
    memory_mb: int = Field(0, ge=0)
    """Memory that Ray counts as taken. It bounds nothing."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Other resources of Ray's, as named in `ray start --resources`: they say which machines will do."""

    def times(self, processes: int) -> "Need":
        """That of so many of them on one machine."""
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
    """Whether processes are spread over machines as evenly as may be; otherwise Ray fills one machine
    after another."""
    silent_s: float = Field(20.0, ge=1)
    """A place that has not answered for so long is given up. It has ended its process by then: after half
    of this without a question from the supervisor."""
    wait_s: float = Field(120.0, gt=0)
    """How long the start waits for places for all processes."""
    proxy: Need = Need()
    """Of the proxy."""
    engine: Need = Need()
    """Of each of the `engine.workers` engines."""
    agent: Need = Need(cpus=0)
    """Of the weight agent of each outside engine."""
    node: Need = Need()
    """Of each node, harnesses included."""
    trainer: Need = Need()
    """Of each of the trainer's `trainer.processes`; they share a machine. `resources` are those of all of
    them."""
