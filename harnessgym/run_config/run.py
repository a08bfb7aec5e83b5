"""The configuration of `harnessgym train` and `harnessgym cluster`, one section per part of a run."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harnessgym.config import Config
from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import ConfigError
from harnessgym.faults.fault import FaultsSection
from harnessgym.heartbeat import SILENT_S
from harnessgym.run_config.cluster import ClusterSection
from harnessgym.run_config.session import SessionOptions
from harnessgym.run_config.trainer import (
    DAPO,
    ControlSection,
    FilterSection,
    GenerateSection,
    ReplaySection,
    TrainerSection,
)


def _spelled(value: Any) -> Any:
    """`true` and `false` as the choices that they stand for."""
    return {True: "evidence", False: "off"}.get(value, value) if isinstance(value, bool) else value


SecondOpinion = Annotated[Literal["off", "evidence", "required"], BeforeValidator(_spelled)]
"""Whether what is rewarded is also compared with the oracle solution, and whether rewards depend on it."""
DemandedIntegrity = Literal["any", "by_value"]
"""Which rewards a run takes."""
Weight = Annotated[float, Field(allow_inf_nan=False)]


_WEIGH_CHANNELS = ("gdpo", "m_grpo")
"""Advantage estimators that weight reward channels themselves."""


Implementation = Literal["auto", "native", "transformers"]
"""Kinds of policies; see `trainers.policy`."""
PackedAttention = Literal["sdpa", "flex"]
"""How rows that are packed into one sequence attend; see `trainers.policies`."""


class PolicySection(Config):
    """The policy to train."""

    name: str = "policy"
    """Name of the policy in the store, and the model name harnesses see."""
    path: str
    """Folder of the starting weights, tokenizer and chat template (Hugging Face layout)."""
    implementation: Implementation = "auto"
    """What trains it. native: our module of Qwen3 and Llama, fast on CPUs. transformers: any model that
    transformers loads. auto: native where it computes the architecture."""
    attention: PackedAttention = "sdpa"
    """How packed rows attend in models of transformers. sdpa: a product for each group of rows with masks.
    flex: torch's FlexAttention, one product for all; on CUDA a compiled kernel."""
    parser: str = "auto"
    """Parser of its answers, by the grammar of their tool calls: a name of docs/models.md, or `module:Class`.
    auto: the one that reads what the chat template writes."""


class FurtherPolicySection(PolicySection):
    """A further policy, of another agent, trained from the same rollouts."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the policy in the store, and the model name that harnesses request."""
    workers: int = Field(1, ge=0)
    """Embedded engine processes that serve it."""
    update: dict[str, Any] = Field(default_factory=dict)
    """Settings of its update that differ from `[trainer.update]`."""

    def without_roles(self) -> PolicySection:
        """The section that it would be as a run's only policy."""
        return PolicySection(
            name=self.name, path=self.path, implementation=self.implementation, parser=self.parser
        )


class TasksSection(Config):
    """The tasks to train on."""

    set: str
    """Task set: a registered name, `module:Class`, or a file or folder of tasks."""
    unfit: bool = False
    """Whether to train on tasks that failed `harnessgym tasks check`."""
    weight: float = Field(1.0, allow_inf_nan=False)
    """Weight of the grader's reward in the trained reward, if the run's own rewards have weights too."""


class HarnessSection(Config):
    """One black-box agent. The rollouts of a group are spread over a run's harnesses in turn."""

    name: str
    """Name in the store."""
    type: str = "command"
    """Registered harness type, or `module:Class`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that type; for `command`, see `harnessgym.harnesses.command.CommandConfig`."""


class RewardSection(Config):
    """One reward of a run."""

    type: str
    """Registered reward, or `module:Class`."""
    name: str = ""
    """Name of the reward in the store; the type if not given."""
    weight: Weight | dict[str, Weight] = 0.0
    """Weight in the trained reward, beside the grader's reward; negative for a penalty. 0: it is only stored.
    A reward with several channels has a table of weights by channel."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of that type."""

    @property
    def weighs(self) -> bool:
        """Whether it counts in the trained reward."""
        return any(self.weight.values()) if isinstance(self.weight, dict) else self.weight != 0


class SandboxSection(Config):
    """Where harnesses run."""

    backend: str = "bubblewrap"
    """Registered sandbox backend, or `module:Class`."""
    fallback: str | None = "process"
    """Backend to use, with a warning, if the first one is missing. Empty refuses to run instead."""
    hidden: tuple[Path, ...] = ()
    """Files and folders of this machine that no sandbox shows, such as what `harnessgym tasks check` found to
    give a task away. Backends that show nothing of this machine, or all of it, take no notice."""


class SamplingSection(Config):
    """Sampling of training rollouts. No top-p or top-k: the policy gradient needs the whole distribution."""

    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    max_tokens: int = Field(512, gt=0)
    """New tokens per model call."""


class NodeSection(Config):
    """How rollouts are run."""

    max_running: int = Field(16, gt=0)
    """Harnesses that run at one time. They keep the engines busy."""
    prepare_at_once: int = Field(4, gt=0)
    """Sandboxes that are opened and set up at one time."""
    prepared_ahead: int = Field(4, ge=0)
    """Rollouts beyond `max_running` that are prepared in advance."""
    reconstruct_at_once: int = Field(2, gt=0)
    """Rollouts whose tokens are read back at one time."""
    evaluate_at_once: int = Field(4, gt=0)
    """Rollouts that are graded at one time."""
    evaluate_waiting: int = Field(32, ge=0)
    """Rollouts that may wait for a grader. While more wait, no new ones begin."""
    memory_reserve_mb: int = Field(256, ge=0)
    """Memory of this machine to keep free. With less, no new sandbox is opened."""
    memory_share: float = Field(0.1, ge=0, le=1)
    """Share of a task's `limits.memory_mb` that must be free before its sandbox is opened. Few tasks use all
    of it."""
    disk_reserve_mb: int = Field(256, ge=0)
    """Space to keep free on the disk of the workspaces, at most a tenth of it. With less, no new sandbox is
    opened."""
    serve: str = ""
    """`HOST:PORT` where rollouts can be submitted, watched and fetched over HTTP; empty serves nothing. The
    actual address and the key are in the run folder's `endpoints.json`."""
    second_opinion: SecondOpinion = "off"
    """evidence: a workspace with reward 1 is also compared with the task's solution, on inputs that the tests
    do not have; differences are stored with the evidence of the grade. required: a reward is kept only if the
    workspace gives the values of the solution on fresh inputs. See docs/sandboxes.md."""
    integrity: DemandedIntegrity = "any"
    """by_value: only rewards that are judged by value count; tasks judged in another way are refused at the
    start. `second_opinion = "required"` judges all tasks with a solution and tests so."""
    lease_s: float = Field(20.0, gt=0)
    """A rollout whose node has been silent for this long is retried."""
    max_attempts: int = Field(3, gt=0)
    """Attempts at a rollout that may end with infrastructure errors before its slot is given up."""
    abort_after_failures: int = Field(24, gt=0)
    """Infrastructure errors in a row without a success that end the run, because they have a common cause."""

    @property
    def in_flight(self) -> int:
        """Rollouts that may be claimed and unfinished at one time, in all stages and their queues."""
        return self.max_running + self.prepared_ahead + self.evaluate_at_once + self.evaluate_waiting


class OutsideEngine(Config):
    """An engine that the run does not start or end, but keeps on the newest policy version.

    See docs/weights-engines.md.
    """

    kind: Literal["vllm", "sglang"]
    """Kind of engine."""
    policy: str = ""
    """Name of the policy that it serves; the first one if not given."""
    url: str = Field(pattern="^https?://[^/@]+(/[^@]*)?$")
    """URL of its HTTP API: `http://host:port`. Anyone who can reach its development routes can replace its
    weights."""

    @property
    def name(self) -> str:
        """Its name, derived from its URL: `vllm-host-port`."""
        return f"{self.kind}-{re.sub('[^A-Za-z0-9.]+', '-', self.url.partition('://')[2]).strip('-')}"


class EngineSection(EngineTimeouts):
    """The engines: embedded ones, which the run starts, and outside ones, which are other programs."""

    workers: int = Field(2, ge=0)
    """Embedded engine processes of the first policy."""
    outside: tuple[OutsideEngine, ...] = ()
    """Engines that already serve a policy, one `[[engine.outside]]` each. With `workers = 0` only these are
    used."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where embedded engines compute. cuda: the first GPU that their processes see."""
    max_batch: int = Field(32, gt=0)
    """Sequences that one embedded engine decodes together."""
    max_length: int = Field(1024, gt=0)
    """Longest prompt plus completion, in tokens."""
    updates_at_once: int = Field(1, gt=0)
    """Workers that may be out of service for a weight update at one time."""
    drain_s: float = Field(0.5, ge=0)
    """Seconds in which a worker's calls in flight may finish on the old weights. Then they continue on the
    new ones."""

    @model_validator(mode="after")
    def _differ(self) -> "EngineSection":
        names = [engine.name for engine in self.outside]
        if len(set(names)) != len(names):
            raise ValueError(
                f"outside has an engine twice: {', '.join(engine.url for engine in self.outside)}"
            )
        return self


class EvaluationSection(Config):
    """Evaluation on held-out tasks before and after training."""

    tasks: int = Field(200, ge=0)
    """Held-out tasks; 0 skips evaluation."""


class MetricsSection(Config):
    """Where the metrics of a run go besides its folder. May change when a run is resumed."""

    sinks: tuple[str, ...] = ()
    """Registered sinks, or `module:Class`, e.g. ["tensorboard"]."""
    project: str = Field("harnessgym", min_length=1)
    """Project of the run in W&B and Trackio."""


class StoreSection(Config):
    """Where traces go."""

    url: str | None = None
    """Database URL; a SQLite file in the run's folder if not given."""
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives power loss, at the price of an fsync per commit."""


class SupervisorSection(Config):
    """How the supervisor handles failing processes."""

    max_restarts: int = Field(5, ge=0)
    """Restarts of one process within a minute before the run is given up."""
    threads: int = Field(1, gt=0)
    """Torch and OpenMP threads of each process."""
    fork: bool = True
    """Whether to fork processes on this machine from one that has loaded their modules. False starts an
    interpreter for each, which loads them again."""
    silent_s: float = Field(SILENT_S, ge=2)
    """A process that has sent no heartbeat for this many seconds is stopped or hangs: it is killed and
    restarted. Long work does not count: heartbeats continue meanwhile."""
    stall_s: float = Field(120.0, gt=0)
    """After this many seconds without a finished rollout or a step, report what the run waits for, and again
    while the stall lasts."""


class RunConfig(Config):
    """One training run."""

    name: str
    """Name of the run."""
    seed: int = 0
    """Seed of task order, sampling and the trainer."""
    code: tuple[str, ...] = ()
    """Folders with your own modules for `module:Class` names, relative to this file. The file's folder and
    the working folder are always searched."""
    policy: PolicySection
    policies: tuple[FurtherPolicySection, ...] = ()
    """Further policies. A call whose `model` names one of them goes to it; every other call goes to the first
    policy."""
    tasks: TasksSection
    harnesses: tuple[HarnessSection, ...] = Field(min_length=1)
    """The agents whose model is trained, one `[[harnesses]]` each."""
    rewards: tuple[RewardSection, ...] = ()
    """Rewards besides the grader's, in order; see `harnessgym.reward`."""
    sandbox: SandboxSection = SandboxSection()
    sampling: SamplingSection = SamplingSection()
    session: SessionOptions = SessionOptions()
    faults: FaultsSection = FaultsSection()
    """Faults to inject into sandboxes; see `harnessgym.faults`."""
    node: NodeSection = NodeSection()
    engine: EngineSection = EngineSection()
    generate: GenerateSection = GenerateSection()
    filter: FilterSection = FilterSection()
    control: ControlSection = ControlSection()
    replay: ReplaySection = ReplaySection()
    trainer: TrainerSection = TrainerSection()
    evaluation: EvaluationSection = EvaluationSection()
    metrics: MetricsSection = MetricsSection()
    store: StoreSection = StoreSection()
    supervisor: SupervisorSection = SupervisorSection()
    cluster: ClusterSection = ClusterSection()

    @model_validator(mode="after")
    def _names_differ(self) -> "RunConfig":
        for kind, named in (("harnesses", self.harnesses), ("policies", self.all_policies)):
            names = [each.name for each in named]
            if len(set(names)) != len(names):
                raise ValueError(f"{kind}: two share a name: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _policies_fit(self) -> "RunConfig":
        known = ["", *(policy.name for policy in self.all_policies)]
        for engine in self.engine.outside:
            if engine.policy not in known:
                raise ValueError(
                    f"engine.outside: {engine.url} serves the policy {engine.policy!r}, which the run does "
                    f"not have. It has: {', '.join(known[1:])}"
                )
        served = {
            *self.engine_policies,
            *(engine.policy or self.policy.name for engine in self.engine.outside),
        }
        if idle := [policy.name for policy in self.all_policies if policy.name not in served]:
            raise ValueError(
                f"engine.workers: no engine serves {', '.join(idle)}. Raise engine.workers (for a further "
                "policy the `workers` of its [[policies]]), or give engines in [[engine.outside]]"
            )
        if self.policies and self.replay.reuse:
            raise ValueError(
                "replay.reuse: with several policies a group belongs to one batch and cannot be trained in a "
                "later one. Set it to 0, or train one policy"
            )
        return self

    @model_validator(mode="after")
    def _attention_has_gradients(self) -> "RunConfig":
        if self.trainer.device == "cpu" and any(each.attention == "flex" for each in self.all_policies):
            raise ValueError(
                'policy.attention = "flex": torch has no gradients of it on CPUs. Leave it out, or set '
                'trainer.device = "cuda"'
            )
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> "RunConfig":
        if self.weighed and self.trainer.advantage in _WEIGH_CHANNELS:
            raise ValueError(
                f"trainer.advantage: {self.trainer.advantage} weights the channels itself, in "
                "trainer.advantage_settings. Leave tasks.weight and the weights of [[rewards]] out, or "
                "choose another advantage"
            )
        if not self.tasks.weight and not any(section.weighs for section in self.rewards):
            raise ValueError(
                "tasks.weight: it is 0 and no [[rewards]] has a weight, so nothing is trained on. Give one a "
                "weight"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _dapo(cls, raw: Any) -> Any:
        """Fill in the filter that the selector `dapo` implies. Contradictions are refused below."""
        sections = [raw.get(name, {}) for name in ("generate", "filter")] if isinstance(raw, dict) else []
        if (
            not sections
            or not all(isinstance(each, dict) for each in sections)
            or sections[0].get("selector") != DAPO
        ):
            return raw
        # A given value wins here and is refused below, with a message that names both settings.
        return raw | {"filter": {"zero_signal": "refill"} | sections[1]}

    @model_validator(mode="after")
    def _curation_fits(self) -> "RunConfig":
        replay = self.replay
        trainer = self.trainer
        if self.generate.selector == DAPO and self.filter.zero_signal != "refill":
            raise ValueError(
                "generate.selector: dapo refills; leave filter.zero_signal out, or choose the selector "
                "uniform"
            )
        if replay.reuse and trainer.max_staleness == 0:
            raise ValueError(
                "replay.reuse trains groups again under later versions, which η = 0 does not allow: raise "
                "trainer.max_staleness"
            )
        if replay.reuse and not self.replayed:
            share = replay.reuse_share
            groups = trainer.groups_per_step
            raise ValueError(
                f"replay.reuse_share: {share} of {groups} groups is less than one group; raise it"
            )
        if replay.reuse and trainer.reward_shuffle:
            raise ValueError(
                "trainer.reward_shuffle gives a group other rewards each time: set replay.reuse = 0"
            )
        if replay.success_pool and (trainer.max_staleness == 0 or trainer.reward_shuffle or self.policies):
            raise ValueError(
                "replay.success_pool needs trainer.max_staleness above 0, one policy, and rewards that are "
                "not shuffled"
            )
        return self

    def beside(self, file: Path) -> Self:
        """The run with the folders in `code` resolved relative to `file`, and the file's own folder added."""
        folder = file.resolve().parent
        return self.model_copy(
            update={"code": tuple(str((folder / each).resolve()) for each in (*self.code, "."))}
        )

    @property
    def weighed(self) -> bool:
        """Whether the trained reward is a weighted sum, not just the grader's reward."""
        return self.tasks.weight != 1 or any(section.weighs for section in self.rewards)

    @property
    def replayed(self) -> int:
        """Places of a batch that replayed groups may take."""
        return int(self.replay.reuse_share * self.trainer.groups_per_step) if self.replay.reuse else 0

    @property
    def all_policies(self) -> tuple[PolicySection, ...]:
        """Every policy, the first one first."""
        return self.policy, *self.policies

    @property
    def engine_policies(self) -> tuple[str, ...]:
        """Name of the policy that each engine process serves, by its number."""
        others = (each.name for each in self.policies for _ in range(each.workers))
        return (self.policy.name,) * self.engine.workers + tuple(others)

    def of_policy(self, name: str) -> Self:
        """The configuration for the trainer of one policy. Raises `ConfigError` for an unknown policy."""
        if name in ("", self.policy.name):
            return self
        policy = next((each for each in self.policies if each.name == name), None)
        if policy is None:
            known = ", ".join(each.name for each in self.all_policies)
            raise ConfigError(f"The run has no policy {name!r}. It has: {known}.")
        # Key by key: a further policy names only the update settings that differ.
        trainer = self.trainer.model_copy(update={"update": self.trainer.update | policy.update})
        return self.model_copy(update={"policy": policy.without_roles(), "trainer": trainer})
