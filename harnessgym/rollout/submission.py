"""What a request for rollouts says, checked: a task by its name or whole, a harness, how often, how
sampled.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Discriminator, Field, Tag, create_model

from harnessgym.config import Config
from harnessgym.task import Limits, Setup, Split, Task

_types = get_type_hints(Limits)
_limits: dict[str, Any] = {
    each.name: (_types[each.name], Field(each.default, gt=0)) for each in fields(Limits)
}
LimitsTable: Any = create_model("LimitsTable", __base__=Config, **_limits)
"""The fields of `harnessgym.task.Limits`, all positive."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"


class NamedTask(Config):
    """A task of a set."""

    set: str
    """A registered task set, `module:Class`, or a folder of native tasks on the node's machine."""
    id: str


class SubmissionSetup(Config):
    """See `harnessgym.task.Setup`."""

    run: tuple[tuple[str, ...], ...] = ()
    hosts: tuple[str, ...] = ()
    timeout_s: float = Field(300.0, gt=0)


class InlineTask(Config):
    """A task that comes with the request; see `harnessgym.task.Task`."""

    id: str = Field(pattern=_NAME, max_length=200)
    instruction: str
    grader: str
    """`module:attribute` that the node can load, or a registered grader such as `checks`."""
    split: Split = "train"
    seed: int = 0
    files: Mapping[str, str] = Field(default_factory=dict)
    image: str | None = None
    limits: LimitsTable = Field(default_factory=LimitsTable)
    needs: frozenset[str] = frozenset()
    setup: SubmissionSetup = SubmissionSetup()
    artifacts: tuple[str, ...] = (".",)
    verifier: Literal["separate", "shared"] = "separate"
    metadata: Mapping[str, Any] = Field(default_factory=dict)

    def task(self) -> Task:
        """The task. Raises `TaskError` for files that lead out of the workspace."""
        own = {
            name: getattr(self, name) for name in type(self).model_fields if name not in ("limits", "setup")
        }
        return Task(**own, limits=Limits(**self.limits.model_dump()), setup=Setup(**self.setup.model_dump()))


class SubmissionSampling(Config):
    """How it is sampled; the session fixes it, whatever the harness asks for."""

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """Below 1, tokens are recorded and not trained on."""
    top_k: int = Field(0, ge=0)
    """0 is no limit. Otherwise, as above."""
    max_tokens: int = Field(4_096, gt=0)


TAGS = ("named", "inline")


def _tag(value: Any) -> str:
    """Which of the two a task is meant to be: one that names its set is no other."""
    named = "set" in value if isinstance(value, dict) else isinstance(value, NamedTask)
    return TAGS[0] if named else TAGS[1]


AskedTask = Annotated[
    Annotated[NamedTask, Tag(TAGS[0])] | Annotated[InlineTask, Tag(TAGS[1])], Discriminator(_tag)
]


class Submission(Config):
    """Body of `POST /rollouts`."""

    task: AskedTask
    harness: str | None = None
    """One of the run's; may be left out where there is one only."""
    samples: int = Field(1, ge=1, le=1_024)
    """Rollouts, which are one group."""
    sampling: SubmissionSampling = SubmissionSampling()
    seed: int = 0
    """Slot n samples with this and n."""
    group: str | None = Field(None, pattern=_NAME, max_length=200)
    """Your name of the group: submitted again under it, the rollouts that are there are returned."""
