"""The checked body of a request for rollouts: a task (named or inline), harness, samples and sampling."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Discriminator, Field, Tag, create_model

from harnessgym.config import Config
from harnessgym.task import Limits, Setup, Split, Task


class FiniteConfig(Config):
    """Settings whose numbers must be finite: JSON, in which the store keeps them, has no others."""

    model_config = ConfigDict(allow_inf_nan=False)


_types = get_type_hints(Limits)
_limits: dict[str, Any] = {
    each.name: (_types[each.name], Field(each.default, gt=0)) for each in fields(Limits)
}
LimitsTable: Any = create_model("LimitsTable", __base__=FiniteConfig, **_limits)
"""The fields of `harnessgym.task.Limits`, all positive."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"


class NamedTask(Config):
    """A task of a task set, by name."""

    set: str
    """A registered task set, `module:Class`, or a folder of native tasks on the node's machine."""
    id: str


class SubmissionSetup(FiniteConfig):
    """See `harnessgym.task.Setup`."""

    run: tuple[tuple[str, ...], ...] = ()
    hosts: tuple[str, ...] = ()
    timeout_s: float = Field(300.0, gt=0)


class InlineTask(Config):
    """A task given in the request; see `harnessgym.task.Task`."""

    id: str = Field(pattern=_NAME, max_length=200)
    instruction: str
    grader: str
    """A registered grader such as `checks`, or a `module:attribute` that the node can load."""
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
        """Build the task. Raises `TaskError` for files outside the workspace."""
        own = {
            name: getattr(self, name) for name in type(self).model_fields if name not in ("limits", "setup")
        }
        return Task(**own, limits=Limits(**self.limits.model_dump()), setup=Setup(**self.setup.model_dump()))


class SubmissionSampling(FiniteConfig):
    """Sampling settings. The session enforces them, whatever the harness asks for."""

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """Below 1, tokens are recorded but not trained on."""
    top_k: int = Field(0, ge=0)
    """0 means no limit. Otherwise tokens are recorded but not trained on."""
    max_tokens: int = Field(4_096, gt=0)


TAGS = ("named", "inline")


def _tag(value: Any) -> str:
    """Whether a task is named or inline: one with a `set` is a named one."""
    named = "set" in value if isinstance(value, dict) else isinstance(value, NamedTask)
    return TAGS[0] if named else TAGS[1]


AskedTask = Annotated[
    Annotated[NamedTask, Tag(TAGS[0])] | Annotated[InlineTask, Tag(TAGS[1])], Discriminator(_tag)
]


class Submission(Config):
    """Body of `POST /rollouts`."""

    task: AskedTask
    harness: str | None = None
    """A harness of the run. May be omitted if the run has only one."""
    samples: int = Field(1, ge=1, le=1_024)
    """Rollouts in the group."""
    sampling: SubmissionSampling = SubmissionSampling()
    seed: int = 0
    """The seed of slot n is derived from this and n."""
    group: str | None = Field(None, pattern=_NAME, max_length=200)
    """Your name for the group. Submitting the same name again returns the existing rollouts."""
