"""The `[trainer]` section of a run: how the policy learns, and how its versions are published."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from harnessgym.config import Config
from harnessgym.registry import known_as, names
from harnessgym.scheduling.consumption import WhenStale

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTIONS: tuple[Projection, ...] = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
"""The linear layers of a decoder block, as Hugging Face names them."""


class LoraSection(Config):
    """Low-rank adapters in place of the weights (LoRA, arXiv 2106.09685): W + alpha / rank · B A, where A
    and B are trained.
    """

    rank: int = Field(0, ge=0)
    """Inner dimension of A and B; 0 trains all weights."""
    alpha: float = Field(32.0, gt=0)
    """What adapters add counts alpha / rank."""
    targets: Literal["all-linear"] | tuple[Projection, ...] = "all-linear"
    """Layers that get adapters, by their Hugging Face names. all-linear: all of q_proj, k_proj, v_proj,
    o_proj, gate_proj, up_proj, down_proj; never embeddings or the vocabulary's projection."""
    dropout: float = 0.0
    """Must be 0: what a rollout's tokens are compared with is the policy that sampled them, and engines
    drop nothing."""

    @property
    def on(self) -> bool:
        """Whether adapters are trained, and nothing else."""
        return self.rank > 0

    @property
    def layers(self) -> tuple[Projection, ...]:
        """The targets one by one, in the order of the model."""
        return tuple(name for name in PROJECTIONS if self.targets == "all-linear" or name in self.targets)

    @field_validator("targets")
    @classmethod
    def _some(cls, targets: str | tuple[Projection, ...]) -> str | tuple[Projection, ...]:
        if not targets:
            raise ValueError('no layer would be trained: name some, or leave targets out for "all-linear"')
        return targets

    @field_validator("dropout")
    @classmethod
    def _none_dropped(cls, dropout: float) -> float:
        if dropout:
            raise ValueError(
                "the recorded log-probabilities are those of an engine that drops nothing, and ratios of a "
                "policy with dropout "
                "to them would be noise: leave it at 0"
            )
        return dropout

    @model_validator(mode="before")
    @classmethod
    def _rank_given(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given and "rank" not in given:
            raise ValueError("adapters need a rank, such as rank = 16; without one all weights are trained")
        return given


PERIODIC: dict[str, Any] = {"max_staleness": 0, "when_stale": "drop", "stream": True}
"""Settings of the trainer that periodic training is made of: with η = 0 nothing is given up, and no order
waited for."""


def _settings_of(model: str) -> Any:
    """A table that is checked by a model of another package, for `harnessgym.setting_tree` to list."""
    return Field(default_factory=dict, json_schema_extra={"settings": model})


class PublishSection(Config):
    """How the trainer publishes policy versions."""

    kind: Literal["delta", "full"] = "delta"
    """`delta` writes what changed since the version before, where that is smaller; `full` writes every
    tensor every time."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type that weights are rounded to; as they are trained if not given. A step changes few bfloat16
    weights, but nearly every float32 one, so deltas of those are rarely worth writing."""
    full_every: int = Field(16, gt=0)
    """A full version after so many, at the latest."""
    keep: int = Field(8, ge=0)
    """Newest versions that stay on disk, besides those that a worker serves and those that they build on;
    0 keeps all. Newest by number, and by steps along the surviving chain."""


class TrainerSection(Config):
    """How the policy learns."""

    algorithm: str = "grpo"
    """Registered algorithm, or `module:function`."""
    steps: int = Field(24, gt=0)
    """Batches to train on; each makes one policy version."""
    groups_per_step: int = Field(8, gt=0)
    """Groups in a batch."""
    group_size: int = Field(8, gt=0)
    """Rollouts of one task in a group. 1 is enough for ppo, which compares with what its critic expects."""
    max_staleness: int = Field(1, ge=0)
    """η: how many versions old a token may be when it is trained. 0 is synchronous training."""
    when_stale: WhenStale = "wait"
    """wait: batches keep the order of submission, and slow groups are waited for. drop: whatever is
    complete is taken, oldest first, and what gets older than η is given up. requeue: likewise, and its
    tasks are submitted again before others."""
    over_launch: float | None = Field(None, ge=1)
    """How many batches' worth of groups stand at one time, whatever η; η + 1 if not given. A step takes
    the first that are complete; rollouts that have not ended go on under later versions, before others
    (APRIL, arXiv 2509.18521)."""
    periodic: bool = False
    """Strictly on-policy, and streamed: the version that a step starts from samples every rollout of its
    batch, and gradients accumulate as groups complete, in whatever order (Periodic Asynchrony, arXiv
    2511.18871)."""
    min_group: int = Field(2, ge=2)
    """Graded rollouts that a group must have left when attempts of the others are used up; with fewer it
    is given up. All of them, where a group has fewer."""
    stream: bool = False
    """Whether gradients of a batch accumulate group by group as these complete, instead of when the last
    one has. Equal up to rounding."""
    processes: int = Field(1, gt=0)
    """Processes that train together on one machine, each with a shard of the policy (FSDP2). Changes
    rounding, nothing else."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where weights and gradients are. cuda: each process takes the GPU of its rank."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What matrix products of forward and backward passes are computed in. bfloat16: by torch's autocast;
    weights, optimizer, norms, the residual stream, log-probabilities and losses stay float32."""
    lora: LoraSection = LoraSection()
    """Adapters that are trained in place of the weights; off without a rank."""
    checkpoints: Literal["lazy", "blocking"] = "lazy"
    """lazy: written and published by a thread, from copies, while the trainer gathers and computes the
    next step."""
    advantage: str = "grpo"
    """Advantage estimator; docs/algorithms.md has them all."""
    advantage_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the estimator, where it has any."""
    reward_shuffle: bool = False
    """Control experiment: permute rewards among all rollouts of a batch, so that they teach nothing."""
    publish: PublishSection = PublishSection()
    """How policy versions are written."""
    update: dict[str, Any] = _settings_of("trainers.update_settings:UpdateSettings")
    """Settings of the update: lr, loss, proximal, corrections, lr_rule, baseline, max_grad_norm,
    normalisation, micro_batch_tokens. Names and tables; see docs/running.md."""
    ppo: dict[str, Any] = _settings_of("trainers.ppo_settings:PpoSettings")
    """Settings of algorithm = "ppo": gamma, lam, whiten, epochs, mini_batches, critic. See
    docs/running.md."""

    @field_validator("algorithm")
    @classmethod
    def _by_its_name(cls, given: str) -> str:
        return known_as("algorithm", given)

    @model_validator(mode="before")
    @classmethod
    def _periodic(cls, given: Any) -> Any:
        """What periodic training is made of, unless it is given; what contradicts it is refused below."""
        return PERIODIC | given if isinstance(given, dict) and given.get("periodic") else given

    @model_validator(mode="after")
    def _modes_fit(self) -> "TrainerSection":
        own = {name: getattr(self, name) for name in PERIODIC}
        other = next((name for name, value in PERIODIC.items() if own[name] != value), None)
        if self.periodic and other:
            raise ValueError(
                f"periodic training has {other} = {PERIODIC[other]}: leave {other} out, or periodic"
            )
        if self.periodic and self.over_launch is not None:
            raise ValueError(
                "over_launch carries rollouts over to later versions, and periodic training takes none: "
                "choose one"
            )
        if self.over_launch is not None and self.when_stale == "wait":
            raise ValueError(
                "over_launch takes the first groups that are complete, in any order: set when_stale to drop "
                "or requeue"
            )
        if self.over_launch is not None and self.max_staleness == 0:
            raise ValueError(
                "over_launch carries rollouts over to later versions, and η = 0 trains none: raise "
                "max_staleness"
            )
        return self

    @model_validator(mode="after")
    def _possible(self) -> "TrainerSection":
        if self.group_size == 1 and self.algorithm == "grpo":
            raise ValueError(
                "grpo compares the rollouts of a group with each other, so it needs two at least: raise "
                "group_size, or set "
                'algorithm = "ppo", which compares with its critic'
            )
        if self.ppo and self.algorithm != "ppo" and self.algorithm in names("algorithm"):
            raise ValueError(
                '[trainer.ppo] has the settings of algorithm = "ppo", and the algorithm is '
                f"{self.algorithm}: leave it out"
            )
        if self.min_group > max(self.group_size, 2):
            raise ValueError(
                f"min_group is {self.min_group}, and a group has only {self.group_size} rollouts (group_size)"
            )
        if self.stream and self.reward_shuffle:
            raise ValueError("reward_shuffle permutes rewards over the whole batch: set stream = false")
        return self
