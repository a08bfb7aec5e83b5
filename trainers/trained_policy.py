"""The policy under training with its optimizer: whole in one process, or in shards over several.

Every process has a `TrainedPolicy`. The followers wait in `follow` for the names and arguments of the
leader's calls and repeat them. So an algorithm reads the same for any number of processes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harnessgym.errors import TrainerError
from harnessgym.run_config.run import RunConfig
from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.checkpoint import RandomState
from trainers.lora import adapt
from trainers.optimizer import make_optimizer
from trainers.policies.loading import load_policy
from trainers.policy import Policy
from trainers.ppo_settings import CriticSettings
from trainers.proximal import MovingAverage, Proximal, Snapshots
from trainers.reference import Reference, ReferenceScores, make_reference, make_teacher
from trainers.scoring import Scorer, mean_logprobs
from trainers.update import GradientAccumulation, UpdateMetrics, policy_update
from trainers.update_settings import Ewma, settings_of
from trainers.value_function import ValueFunction, ValueMetrics
from trainers.world import ALONE, World

State = tuple[dict[str, Tensor], dict[str, Any], tuple[RandomState, ...]]
"""Weights by Hugging Face name, the optimizer's state, and the random state of each process by rank."""


class TrainedPolicy:
    """One process's part of the policy and its optimizer. The leader calls its methods; the others call
    `follow`.
    """

    def __init__(
        self,
        config: RunConfig,
        world: World = ALONE,
        versions: Path | None = None,
        critic: CriticSettings | None = None,
    ) -> None:
        """`versions` is the folder of the run's published versions, which some proximal policies need. With
        `critic` there is a critic, too.
        """
        self.settings = settings_of(config)
        self.world = world
        world.take_device()
        torch.manual_seed(config.seed + world.rank)
        self.policy: Policy = load_policy(
            Path(config.policy.path),
            config.policy.implementation,
            checkpointing=config.trainer.gradient_checkpointing,
            attention=config.policy.attention,
        )
        if world.size > 1 and self.policy.one_process_because:
            raise TrainerError(
                f"trainer.processes = {world.size}: {self.policy.one_process_because}. Set it to 1."
            )
        self.policy.products = getattr(torch, config.trainer.dtype)
        self.value_function = (
            None if critic is None else ValueFunction(self.policy, critic, self.settings, world)
        )
        if config.trainer.lora.on:
            adapt(self.policy, config.trainer.lora, config.seed)
        if world.size > 1:
            from trainers.shards import shard

            shard(self.policy, world)
        else:
            self.policy.to(world.device)
        self.optimizer = make_optimizer(self.policy, self.settings)
        self._gradients: GradientAccumulation | None = None
        self._proximal = self._make_proximal(versions, config.trainer.max_staleness + 1)
        self._reference, self._teacher = self._make_references(config)

    def _make_proximal(self, versions: Path | None, kept: int) -> Proximal | None:
        named = self.settings.proximal
        if isinstance(named, Ewma):
            return MovingAverage(self.policy, self.settings, named, self.world)
        if named != "snapshot":
            return None
        if versions is None:
            raise TrainerError(
                "proximal = 'snapshot' reads published versions: pass the run's `versions` folder."
            )
        return Snapshots(self.policy, self.settings, versions, kept, self.world)

    def _make_references(self, config: RunConfig) -> tuple[Reference | None, Reference | None]:
        """The reference of the KL term, and the teacher; None if there is none."""
        kl, distillation = self.settings.kl, self.settings.distillation
        beside = (config, self.policy, self.settings, self.world)
        reference = None if kl is None else make_reference(kl.reference, *beside)
        if distillation is None:
            return reference, None
        whole = distillation.tokens == "full"
        return reference, make_teacher(distillation.teacher, *beside, whole=whole)

    @property
    def _whole_teacher(self) -> Policy | None:
        """The model whose whole distributions are compared in the loss, if there is one."""
        distillation = self.settings.distillation
        if distillation is None or distillation.tokens != "full":
            return None
        return getattr(self._teacher, "model", None)

    def follow(self) -> None:
        """Repeat the leader's calls until it calls `dismiss`."""
        while order := self.world.next_order():
            name, *arguments = order
            getattr(self, name)(*arguments)

    def dismiss(self) -> None:
        """End the followers' `follow`."""
        self.world.lead()

    @property
    def wants_ages(self) -> bool:
        """Whether `update` and `add` need the staleness of each token."""
        return self.settings.proximal == "loglinear"

    def recomputed(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of all tokens under the current weights, for later calls of `update`; float32 [T] per
        row.
        """
        self.world.lead("recomputed", rows)
        return Scorer(self.policy, self.settings, self.world).logprobs(rows)

    def reference_logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of trained tokens under the reference of `settings.kl`; float32 [T] per row."""
        self.world.lead("reference_logprobs", rows)
        assert self._reference is not None
        return self._reference.logprobs(rows)

    def teacher_logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of trained tokens under the teacher; float32 [T] per row."""
        self.world.lead("teacher_logprobs", rows)
        assert self._teacher is not None
        return self._teacher.logprobs(rows)

    def reference_scores(self, rows: Sequence[Row]) -> ReferenceScores:
        """What the loss needs of the reference and of the teacher, for calls of `update` on these rows."""
        self.world.lead("reference_scores", rows)
        return self._reference_scores(rows)

    def _reference_scores(self, rows: Sequence[Row]) -> ReferenceScores:
        logprobs, top = None, None
        if self._reference is not None and self.settings.kl is not None and self.settings.kl.use == "loss":
            logprobs = self._reference.logprobs(rows)
        count = self.settings.distillation.most_likely if self.settings.distillation else 0
        if self._teacher is not None and count:
            top = self._teacher.top(rows, count, self.policy.vocabulary)
        return ReferenceScores(logprobs, top)

    def update(
        self,
        rows: Sequence[Row],
        advantages: Sequence[float | FloatArray],
        ages: Sequence[IdArray] | None = None,
        proximal: Sequence[FloatArray] | None = None,
        references: ReferenceScores | None = None,
    ) -> UpdateMetrics:
        """Take one optimizer step on a batch; see `policy_update`. `proximal` is the result of `recomputed`,
        if that is used, and `references` that of `reference_scores`, which is called if it is not given.
        """
        self.world.lead("update", rows, advantages, ages, proximal, references)
        if self._proximal is not None:
            proximal = self._proximal.logprobs(rows)
        metrics = policy_update(
            self.policy, self.optimizer, rows, advantages, self.settings, proximal, self.world, ages,
            references or self._reference_scores(rows), self._whole_teacher,
        )  # fmt: skip
        return self._stepped(metrics)

    def begin(self) -> None:
        """Begin a step whose batch arrives in parts; see `GradientAccumulation`."""
        self.world.lead("begin")
        self._gradients = GradientAccumulation(
            self.policy, self.optimizer, self.settings, self.world, self._whole_teacher
        )

    def add(
        self,
        rows: Sequence[Row],
        advantages: Sequence[float | FloatArray],
        ages: Sequence[IdArray] | None = None,
    ) -> None:
        """Add a part to the step that was begun."""
        self.world.lead("add", rows, advantages, ages)
        assert self._gradients is not None
        proximal = None if self._proximal is None else self._proximal.logprobs(rows)
        self._gradients.add(rows, advantages, proximal, ages, self._reference_scores(rows))

    def step(self) -> UpdateMetrics:
        """Take the step that was begun."""
        self.world.lead("step")
        assert self._gradients is not None
        return self._stepped(self._gradients.step())

    def _stepped(self, metrics: UpdateMetrics) -> UpdateMetrics:
        if self._proximal is not None:
            self._proximal.stepped(metrics)
        return metrics

    def end_batch(self) -> None:
        """Let references follow the policy. Called after all steps on a batch."""
        self.world.lead("end_batch")
        for each in (self._reference, self._teacher):
            if each is not None:
                each.stepped()

    def score(self, texts: Sequence[IdArray], tails: Sequence[int]) -> list[float]:
        """The mean logprob of the last `tails[i]` tokens of each text, int32 [T]. Changes nothing.

        Every process computes all of them: if the policy is sharded, each must take part in each pass.
        """
        self.world.lead("score", texts, tails)
        return mean_logprobs(self.policy, texts, tails, self.settings)

    def values(self, rows: Sequence[Row]) -> list[FloatArray]:
        """The critic's values before each token, float32 [T] per row."""
        self.world.lead("values", rows)
        assert self.value_function is not None
        return self.value_function.values(rows)

    def update_critic(
        self, rows: Sequence[Row], targets: Sequence[FloatArray], old: Sequence[FloatArray]
    ) -> ValueMetrics:
        """Take one optimizer step of the critic; see `ValueFunction.update`."""
        self.world.lead("update_critic", rows, targets, old)
        assert self.value_function is not None
        return self.value_function.update(rows, targets, old)

    def critic_state(self) -> dict[str, Any] | None:
        """The critic's state for a checkpoint, as copies; None without a critic."""
        self.world.lead("critic_state")
        return None if self.value_function is None else self.value_function.state()

    def state(self) -> State:
        """The state for a checkpoint. Weights are copies in main memory; the next step may change the
        optimizer's state in place.
        """
        self.world.lead("state")
        randoms = tuple(self.world.all_gather(RandomState.here()))
        if self.world.size == 1:
            weights = self.policy.published()
            optimizer = self.optimizer.state_dict()
            return {name: tensor.cpu() for name, tensor in weights.items()}, optimizer, randoms
        from trainers.shards import gather

        weights, optimizer = gather(self.policy, self.optimizer)
        return self.policy.published(weights), optimizer, randoms

    def adapter_state(self) -> dict[str, Any] | None:
        """The adapters' state, which a checkpoint has instead of weights, as copies; None without
        adapters.
        """
        self.world.lead("adapter_state")
        if self.policy.lora is None:
            return None
        if self.world.size == 1:
            return self.policy.lora.state(self.policy.state_dict())
        from trainers.shards import gather_weights

        return self.policy.lora.state(gather_weights(self.policy))

    def proximal_state(self) -> dict[str, Any] | None:
        """The proximal policy's state for a checkpoint, as copies; None if it has none."""
        self.world.lead("proximal_state")
        return None if self._proximal is None else self._proximal.state()

    def reference_state(self) -> dict[str, Any] | None:
        """The states of reference and teacher for a checkpoint, as copies; None without any."""
        self.world.lead("reference_state")
        known = {"reference": self._reference, "teacher": self._teacher}
        states = {name: each.state() for name, each in known.items() if each is not None}
        return states or None

    def load(
        self,
        weights: dict[str, Tensor] | None = None,
        optimizer: dict[str, Any] | None = None,
        randoms: tuple[RandomState, ...] = (),
        proximal: dict[str, Any] | None = None,
        critic: dict[str, Any] | None = None,
        adapters: dict[str, Any] | None = None,
        references: dict[str, Any] | None = None,
    ) -> None:
        """Load weights or adapters and, if given, the states of the optimizer, the generators, the proximal
        policy, the critic and the references.

        A process without an entry in `randoms` keeps its own state: torch's starts from the run's seed plus
        its rank. Raises `TrainerError` if there are adapters and none are trained, or vice versa, or they do
        not fit.
        """
        # Only the leader has the state: the followers are called without arguments, and the collective
        # operations below give them their shards. A bad checkpoint raises before any of them has begun.
        tensors = self._adapters(adapters) if self.world.rank == 0 else {}
        self.world.lead("load")
        if self.world.size == 1:
            if self.policy.lora is None:
                self.policy.load(weights or {})
            else:
                self.policy.load_state_dict(tensors, strict=False)
            if optimizer is not None:
                self.optimizer.load_state_dict(optimizer)
        else:
            from trainers.shards import gather_weights, scatter

            if self.policy.lora is None:
                packed = self.policy.state_dict_of(weights) if weights is not None else {}
            else:
                packed = gather_weights(self.policy) | tensors
            stepped = self.world.broadcast(optimizer is not None and bool(optimizer["state"]))
            scatter(self.policy, self.optimizer, packed, (optimizer or {}) if stepped else None)
        if self._proximal is not None:
            self._proximal.load(proximal)
        if self.value_function is not None:
            self.value_function.load(critic)
        if self._reference is not None:
            self._reference.load((references or {}).get("reference"))
        if self._teacher is not None:
            self._teacher.load((references or {}).get("teacher"))
        randoms = self.world.broadcast(randoms)
        if self.world.rank < len(randoms):
            randoms[self.world.rank].restore()

    def _adapters(self, state: dict[str, Any] | None) -> dict[str, Tensor]:
        """A checkpoint's adapters; empty if whole weights are trained. Raises `TrainerError`."""
        if self.policy.lora is not None:
            return self.policy.lora.tensors_of(state)
        if state is not None:
            raise TrainerError(
                f"The checkpoint has adapters ({state['settings']}) and trainer.lora is off: resume with "
                "these settings, or begin a new run from a version (`harnessgym weights export`)."
            )
        return {}
