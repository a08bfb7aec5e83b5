"""Tasks: what an agent is asked to do, with what, within which limits, and how the result is judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from harnessgym.errors import TaskError

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rollout may use. Reaching one ends the rollout with a stop reason; it is not an error."""

    wall_s: float = 60.0
    """Seconds the harness may run."""
    turns: int = 64
    """Model calls the proxy answers in one session."""
    tokens: int | None = None
    """Tokens the policy may sample in one session; None is no limit."""
    output_bytes: int = 10 << 20
    """Bytes of harness output kept per stream: the last ones; that others were dropped is marked."""
    memory_mb: int = 2_048
    """Memory of all processes of a sandbox together; where the sandbox cannot tell, address space of each
    of them."""
    processes: int = 256
    """Processes and threads of the harness at one time, where the sandbox can count them."""
    disk_mb: int = 512
    """All that is written, where the sandbox can tell."""
    cpus: float = 1.0
    """Processors at one time, where the sandbox can tell."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is done in a sandbox before the harness starts."""

    run: tuple[tuple[str, ...], ...] = ()
    """Commands, in the workspace, in order. One that fails ends the rollout as an infrastructure error."""
    hosts: tuple[str, ...] = ()
    """What they may reach, as `name`, `*.name`, an address or a CIDR block. When they have ended, nothing
    can be reached."""
    timeout_s: float = 300.0
    """For all of them together."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A way to solve a task, for checking that its grader rewards it. Never shown to a harness."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Relative path to text, laid over the task's files."""
    run: tuple[tuple[str, ...], ...] = ()
    """Commands, in the workspace, after that."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A command of the task in the agent's sandbox when every process of the agent is dead, to make something
    that is graded.

    What the agent left can make it fail, so that is recorded with the verdict and never an error.
    """

    argv: tuple[str, ...]
    root: bool = False
    """As root, where the sandbox has it."""
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class GradingImage:
    """What is different about the sandboxes that grade."""

    image: str | None = None
    """Instead of the task's own, as `Task.image`."""
    install: tuple[tuple[str, ...], ...] = ()
    """Commands that put into the image what tests need, run as root with the network open; kept as layers.
    Needs an image."""


@dataclass(frozen=True, slots=True)
class TaskStep:
    """One of several things asked in the same sandbox. The harness is launched anew for each, in the
    workspace as it is.
    """

    name: str
    instruction: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Laid into the workspace before the step."""
    setup: Setup = Setup()
    solution: Solution | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the task's own for this step's grading."""
    wall_s: float | None = None
    """Instead of the task's limit."""
    min_reward: Mapping[str, float] = field(default_factory=dict)
    """Reward channel to the least that this step must reach, or no later step is run."""
    hooks: tuple[Hook, ...] = ()
    """Run in order, after the task's own, before what the agent left in this step is taken out."""


OUTSIDE = ".outside"
"""Folder of what was exported that holds what `Task.collect` names."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do. Immutable, and the same on every machine for the same id."""

    id: str
    instruction: str
    """What the harness is told, verbatim."""
    split: Split = "train"
    seed: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    """Relative path to text, laid into the workspace before the harness starts."""
    image: str | None = None
    """Container image, where a task needs one; `context:FOLDER` is built from the Dockerfile in a folder
    of this machine."""
    limits: Limits = Limits()
    network: Literal["proxy"] = "proxy"
    """The only route out of a sandbox is the proxy."""
    needs: frozenset[str] = frozenset()
    """Capabilities of the sandbox (`harnessgym.sandbox.Capability`) that the task cannot do without."""
    setup: Setup = Setup()
    artifacts: tuple[str, ...] = (".",)
    """Paths of the workspace that are graded; the rest stays behind."""
    grader: str = ""
    """`"module:attribute"`: a function `grade(task, workspace) -> Grade`, which looks at the exported
    workspace, or a `harnessgym.grading.verifier.Verifier`, which is also given fresh sandboxes to run
    things in."""
    verifier: Literal["separate", "shared"] = "separate"
    """`shared` grades in the sandbox that the agent used, as some task formats want. Anything the agent
    left there can change what is measured, so the verdict says it."""
    solution: Solution | None = None
    """A solution that must be graded 1 (gold)."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the grader needs; never shown to the harness."""
    home: str = ""
    """Absolute path in the image that the workspace stands for: what the image has there is the
    workspace's first content, and the path leads to the workspace. Needs an image."""
    folders: tuple[str, ...] = ()
    """Absolute paths beside the workspace that are writable and begin empty, such as `/logs`. Needs an
    image."""
    collect: tuple[str, ...] = ()
    """Absolute paths below `folders` that are graded too: a grader finds them under `OUTSIDE` in what was
    exported."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of what runs in the agent's sandbox, over the image's. Needs an image."""
    hooks: tuple[Hook, ...] = ()
    """Run in order before what the agent left is taken out."""
    grading: GradingImage = GradingImage()
    install: tuple[tuple[str, ...], ...] = ()
    """Commands that put into the image what agent and tests need, run as root with the network open; kept
    as layers. Where sandboxes have no image, this machine must have it already."""
    steps: tuple[TaskStep, ...] = ()
    """What is asked one after another in the same sandbox, where a task has several steps; then
    `instruction` is what they have in common, and may be empty."""
    step_reward: Literal["mean", "final"] = "mean"
    """How the rewards of steps make the task's: their mean, with 0 for those that were not reached, or the
    last one's."""

    def __post_init__(self) -> None:
        for path in self.files:
            if Path(path).is_absolute() or ".." in Path(path).parts:
                raise TaskError(
                    f"Task {self.id!r}: file {path!r} must be a relative path inside the workspace."
                )


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader found: reward channels (`"reward"` is the one trained on), or tampering."""

    rewards: Mapping[str, float]
    tampered: str | None = None
    """Why the result cannot be trusted, if it cannot."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What the grade rests on, as JSON values; stored with the verdict."""


class TaskSet(Protocol):
    """A named, splittable collection of tasks."""

    @property
    def name(self) -> str:
        """What the set is called."""
        ...

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split in a fixed order; the two splits share no task."""
        ...
