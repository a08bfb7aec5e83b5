"""The `[trainer]` section of a run (how the policy learns and how its versions are published) and four
sections about its rollouts.

- `[generate]`: which task comes next, and how many rollouts of it.
- `[filter]`: which rollouts and steps are trained on.
- `[control]`: how long each rollout may be.
- `[replay]`: which rollouts are trained again.

Order, staleness and number of the groups in a batch are in `[trainer]`.
"""

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
    """Low-rank adapters (LoRA, arXiv 2106.09685): W + alpha / rank · B A, where only A and B are trained."""

    rank: int = Field(0, ge=0)
    """Inner dimension of A and B; 0 trains all weights."""
    alpha: float = Field(32.0, gt=0)
    """The adapters' output is scaled by alpha / rank."""
    targets: Literal["all-linear"] | tuple[Projection, ...] = "all-linear"
    """Layers that get adapters, by their Hugging Face names. all-linear: all of q_proj, k_proj, v_proj,
    o_proj, gate_proj, up_proj, down_proj; never embeddings or the vocabulary's projection."""
    dropout: float = 0.0
    """Must be 0: training compares tokens with the policy that sampled them, and engines use no dropout."""

    @property
    def on(self) -> bool:
        """Whether only adapters are trained."""
        return self.rank > 0

    @property
    def layers(self) -> tuple[Projection, ...]:
        """The target layers in the order of the model."""
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
                "engines sample without dropout, so a policy with dropout would differ from the recorded "
                "log-probabilities by noise: leave it at 0"
            )
        return dropout

    @model_validator(mode="before")
    @classmethod
    def _rank_given(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and raw and "rank" not in raw:
            raise ValueError("adapters need a rank, such as rank = 16; without one all weights are trained")
        return raw


PERIODIC: dict[str, Any] = {"max_staleness": 0, "when_stale": "drop", "stream": True}
"""The settings that `periodic` implies. With η = 0, `drop` gives nothing up: it only allows any order."""


def _settings_of(model: str) -> Any:
    """A table that another package's model checks. `harnessgym.config.setting_tree` lists its settings."""
    return Field(default_factory=dict, json_schema_extra={"settings": model})


class PublishSection(Config):
    """How the trainer publishes policy versions."""

    kind: Literal["delta", "full"] = "delta"
    """`delta` writes only what changed since the previous version, if that is smaller. `full` always writes
    every tensor."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type that weights are rounded to. Defaults to the type they are trained in. A step changes few bfloat16
    weights but nearly every float32 one, so float32 deltas are rarely worthwhile."""
    full_every: int = Field(16, gt=0)
    """At least every this many versions is a full one."""
    keep: int = Field(8, ge=0)
    """Number of newest versions to keep on disk, besides those that a worker serves and those that they build
    on. 0 keeps all. Newest by number, and by steps along the surviving chain."""


class TrainerSection(Config):
    """How the policy learns."""

    algorithm: str = "grpo"
    """Registered algorithm, or `module:function`."""
    steps: int = Field(24, gt=0)
    """Batches to train on. Each makes one policy version."""
    groups_per_step: int = Field(8, gt=0)
    """Groups in a batch."""
    group_size: int = Field(8, gt=0)
    """Rollouts in a group, all of one task. 1 is enough for ppo, which compares with its critic."""
    max_staleness: int = Field(1, ge=0)
    """η: how many versions old a token may be when it is trained. 0 is synchronous training."""
    when_stale: WhenStale = "wait"
    """wait: batches keep the order of submission and wait for slow groups. drop: take complete groups, oldest
    first, and give up groups older than η. requeue: likewise, but submit their tasks again before others."""
    over_launch: float | None = Field(None, ge=1)
    """Batches' worth of groups that may be outstanding at one time, whatever η; η + 1 if not given. A step
    takes the first complete groups. Unfinished rollouts continue first under later versions (APRIL, arXiv
    2509.18521)."""
    periodic: bool = False
    """Strictly on-policy and streamed: the version that a step starts from samples every rollout of its
    batch, and gradients accumulate as groups complete, in any order (Periodic Asynchrony, arXiv
    2511.18871)."""
    min_group: int = Field(2, ge=2)
    """Graded rollouts that a group needs once the attempts of the others are used up; with fewer it is given
    up. A smaller group needs all of its rollouts."""
    stream: bool = False
    """Whether gradients accumulate group by group as groups complete, instead of after the last one. Equal up
    to rounding."""
    processes: int = Field(1, gt=0)
    """Processes that train together on one machine, each with a shard of the policy (FSDP2). Changes only
    rounding."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of weights and gradients. cuda: each process uses the GPU of its rank."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products in forward and backward passes. bfloat16: by torch's autocast; weights,
    optimizer, norms, the residual stream, log-probabilities and losses stay float32."""
    gradient_checkpointing: bool = False
    """Whether the backward pass computes each block's activations again instead of keeping them: less memory,
    about a third more time."""
    routing_replay: Literal["auto", "off"] = "auto"
    """auto: where an engine reported which experts computed a token, the passes of a mixture of experts use
    them (routing replay, R3, arXiv 2510.11370). off: the policy always chooses its experts itself."""
    lora: LoraSection = LoraSection()
    """Adapters to train in place of the weights; off without a rank."""
    checkpoints: Literal["lazy", "blocking"] = "lazy"
    """lazy: a thread writes and publishes copies while the trainer works on the next step. blocking: the
    trainer waits until they are written."""
    advantage: str = "grpo"
    """Advantage estimator; docs/algorithms.md has them all."""
    advantage_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the estimator, if it has any."""
    reward_shuffle: bool = False
    """Control experiment: permute rewards among all rollouts of a batch, so that they carry no signal."""
    publish: PublishSection = PublishSection()
    """How policy versions are written."""
    update: dict[str, Any] = _settings_of("trainers.update_settings:UpdateSettings")
    """Settings of the update: lr, loss, proximal, corrections, kl, distillation, epochs, mini_batches,
    lr_rule, baseline, max_grad_norm, normalisation, micro_batch_tokens. Names and tables; see
    docs/running.md."""
    ppo: dict[str, Any] = _settings_of("trainers.ppo_settings:PpoSettings")
    """Settings of algorithm = "ppo": gamma, lam, whiten, critic. See docs/running.md."""

    @field_validator("algorithm")
    @classmethod
    def _by_its_name(cls, name: str) -> str:
        return known_as("algorithm", name)

    @model_validator(mode="before")
    @classmethod
    def _periodic(cls, raw: Any) -> Any:
        """Fill in the settings of periodic training that are not given. Contradictions are refused below."""
        return PERIODIC | raw if isinstance(raw, dict) and raw.get("periodic") else raw

    @model_validator(mode="after")
    def _modes_fit(self) -> "TrainerSection":
        own = {name: getattr(self, name) for name in PERIODIC}
        other = next((name for name, value in PERIODIC.items() if own[name] != value), None)
        if self.periodic and other:
            raise ValueError(
                f"periodic = true needs {other} = {PERIODIC[other]}: leave {other} out, or periodic"
            )
        if self.periodic and self.over_launch is not None:
            raise ValueError(
                "over_launch carries rollouts over to later versions, which periodic training does not "
                "allow: choose one"
            )
        if self.over_launch is not None and self.when_stale == "wait":
            raise ValueError(
                "over_launch takes the first groups that are complete, in any order: set when_stale to drop "
                "or requeue"
            )
        if self.over_launch is not None and self.max_staleness == 0:
            raise ValueError(
                "over_launch carries rollouts over to later versions, which η = 0 does not allow: raise "
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
                f"min_group is {self.min_group}, but a group has only {self.group_size} rollouts (group_size)"
            )
        if self.stream and self.reward_shuffle:
            raise ValueError("reward_shuffle permutes rewards over the whole batch: set stream = false")
        return self


DAPO = "dapo"
"""A selector that is really a filter: tasks come in turn, and groups without a signal are replaced."""


class GenerateSection(Config):
    """Which rollouts are generated."""

    selector: str = "uniform"
    """Chooses the task and the size of the next group: a registered selector, or `module:Class`. `dapo` is
    uniform with `filter.zero_signal = "refill"`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that selector."""


class FilterSection(Config):
    """Which rollouts, and which of their steps, are trained on."""

    zero_signal: Literal["leave_out", "refill"] = "leave_out"
    """What to do with groups without a signal for the advantage estimator: for most, groups of equal rewards.
    leave_out: they count towards the batch, but their rows are not trained. refill: they are given up, and
    further groups fill the batch (DAPO's dynamic sampling)."""
    refill_batches: int = Field(3, ge=1)
    """With refill: how many batches' worth of groups one step may give up. Further ones count towards the
    batch."""
    steps_kept: float = Field(1.0, gt=0, le=1)
    """Share of a group's turns that is trained on: those in which the policy was least certain. The others
    get advantage zero. DART uses 0.8."""


class ControlSection(Config):
    """Limits on the length of rollouts."""

    length_cap: bool = False
    """Whether to limit a training rollout to the model calls of its task's longest success so far (DART).
    Without a success, only the task's own limit counts."""


class ReplaySection(Config):
    """What is trained again."""

    reuse: int = Field(0, ge=0)
    """How many more times a group may be trained while it is within η."""
    reuse_share: float = Field(0.5, gt=0, lt=1)
    """With reuse: the largest share of replayed groups in a batch."""
    success_pool: int = Field(0, ge=0)
    """How many more times a successful rollout may be trained, beside a group of its task that failed as a
    whole, while it is within η (DART). 0 means never."""
