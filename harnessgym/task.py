"""Tasks: what an agent is asked to do, its files and limits, and how the result is graded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from harnessgym.errors import TaskError

Split = Literal["train", "test"]
Integrity = Literal["by_value", "in_process"]
"""How a reward is decided. by_value: values are compared on a machine that the judged code cannot reach.
in_process: something that shares a process or a sandbox with the judged code says that it passed, which such
code can forge."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a rollout. Reaching one ends the rollout with a stop reason and is not an error."""

    wall_s: float = 60.0
    """Seconds that the harness may run."""
    turns: int = 64
    """Model calls that the proxy answers in one session."""
    tokens: int | None = None
    """Tokens that the policy may sample in one session; None means no limit."""
    output_bytes: int = 10 << 20
    """Bytes of harness output kept per stream: the last ones. A mark says if earlier ones were dropped."""
    memory_mb: int = 2_048
    """Memory of all processes of a sandbox together. Where the sandbox cannot measure that, the address space
    of each process."""
    processes: int = 256
    """Processes and threads of the harness at one time, if the sandbox can count them."""
    disk_mb: int = 512
    """Everything that is written, if the sandbox can measure it."""
    cpus: float = 1.0
    """CPU cores at one time, if the sandbox can limit them."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Commands run in a sandbox before the harness starts."""

    run: tuple[tuple[str, ...], ...] = ()
    """Commands, run in the workspace in order. A failure ends the rollout as an infrastructure error."""
    hosts: tuple[str, ...] = ()
    """Hosts that they may reach: `name`, `*.name`, an address or a CIDR block. None can be reached later."""
    timeout_s: float = 300.0
    """Time limit for all commands together."""


@dataclass(frozen=True, slots=True)
class Solution:
    """An oracle solution, to check that the grader rewards it. Never shown to a harness."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Relative path to text, written over the task's files."""
    run: tuple[tuple[str, ...], ...] = ()
    """Commands, run in the workspace after the files are written."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A task's command that makes something to grade, run in the agent's sandbox once the agent is dead.

    The agent's files can make it fail. So a failure is recorded with the verdict and is never an error.
    """

    argv: tuple[str, ...]
    root: bool = False
    """Whether it runs as root, if the sandbox has root."""
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class GradingImage:
    """How the grading sandboxes differ."""

    image: str | None = None
    """Image in place of the task's own; see `Task.image`."""
    install: tuple[tuple[str, ...], ...] = ()
    """Commands that install what tests need into the image, run as root with an open network and cached as
    layers. Needs an image."""


@dataclass(frozen=True, slots=True)
class TaskStep:
    """One of several steps in one sandbox. The harness is launched again for each, in the same workspace."""

    name: str
    instruction: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Relative path to text, written to the workspace before the step."""
    setup: Setup = Setup()
    solution: Solution | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Overrides the task's own metadata when this step is graded."""
    wall_s: float | None = None
    """Time limit in place of the task's."""
    min_reward: Mapping[str, float] = field(default_factory=dict)
    """Least reward by channel that this step must reach; otherwise no later step runs."""
    hooks: tuple[Hook, ...] = ()
    """Run in order after the task's own, before the step's artifacts are collected."""


OUTSIDE = ".outside"
"""Folder in an export that holds the paths of `Task.collect`."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task. Immutable, and the same on every machine for the same id."""

    id: str
    instruction: str
    """The instruction that the harness gets, verbatim."""
    split: Split = "train"
    seed: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    """Relative path to text, written to the workspace before the harness starts."""
    image: str | None = None
    """Container image, if the task needs one. `context:FOLDER` is built from the Dockerfile in a folder of
    this machine."""
    limits: Limits = Limits()
    network: Literal["proxy"] = "proxy"
    """The only route out of a sandbox is the proxy."""
    needs: frozenset[str] = frozenset()
    """Capabilities of the sandbox (`harnessgym.sandbox.Capability`) that the task requires."""
    setup: Setup = Setup()
    artifacts: tuple[str, ...] = (".",)
    """Paths of the workspace that are exported for grading."""
    grader: str = ""
    """`"module:attribute"`: a function `grade(task, workspace) -> Grade`, which reads the exported workspace,
    or a `harnessgym.grading.verifier.Verifier`, which also gets fresh sandboxes to run things in."""
    verifier: Literal["separate", "shared"] = "separate"
    """`shared` grades in the agent's own sandbox, as some task formats require. Anything the agent left there
    can affect the grade, so the verdict notes it."""
    solution: Solution | None = None
    """Oracle solution, which must be graded 1."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Data for the grader. Never shown to the harness."""
    home: str = ""
    """Absolute path in the image that the workspace replaces: the workspace begins with the image's content
    there, and the path leads to the workspace. Needs an image."""
    folders: tuple[str, ...] = ()
    """Absolute paths beside the workspace, such as `/logs`, that are writable and begin empty. Needs an
    image."""
    collect: tuple[str, ...] = ()
    """Absolute paths below `folders` to grade too. A grader finds them under `OUTSIDE` in the export."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in the agent's sandbox. They override the image's. Needs an image."""
    hooks: tuple[Hook, ...] = ()
    """Run in order before the artifacts are collected."""
    grading: GradingImage = GradingImage()
    install: tuple[tuple[str, ...], ...] = ()
    """Commands that install what agent and tests need into the image, run as root with an open network and
    cached as layers. If sandboxes have no images, this machine must have it already."""
    steps: tuple[TaskStep, ...] = ()
    """Steps of a task with several, run one after another in the same sandbox. `instruction` is then their
    common part and may be empty."""
    step_reward: Literal["mean", "final"] = "mean"
    """The task's reward: the mean of its steps', with 0 for steps not reached, or the final step's."""

    def __post_init__(self) -> None:
        for path in self.files:
            if Path(path).is_absolute() or ".." in Path(path).parts:
                raise TaskError(
                    f"Task {self.id!r}: file {path!r} must be a relative path inside the workspace."
                )


@dataclass(frozen=True, slots=True)
class Grade:
    """A grader's result: reward channels (`"reward"` is the one trained on), or tampering."""

    rewards: Mapping[str, float]
    tampered: str | None = None
    """Why the result cannot be trusted, or None."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Evidence for the grade as JSON values. Stored with the verdict."""
    integrity: Integrity = "in_process"
    """How the reward was decided. Stored with the verdict."""


class TaskSet(Protocol):
    """A named collection of tasks with a training and a test split."""

    @property
    def name(self) -> str:
        """Name of the set."""
        ...

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split in a fixed order. The splits share no task."""
        ...
