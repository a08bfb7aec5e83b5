"""One optimizer step on a batch of rows: the arithmetic that every trainer here shares.

Each trained token has a loss against a proximal policy, weighted by corrections for off-policy tokens; both
are named in `UpdateSettings`. The default is the clipped surrogate. Equal inputs give equal bits.

In a `World` of several processes, each process calls the same functions with the same rows, computes its
part, and gets the metrics of the whole batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from harnessgym.errors import TrainerError
from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.corrections.baseline import MinimumVariance, reward_of, step_size
from trainers.corrections.importance_sampling import effective_sample_size
from trainers.gradients import Forward, Item, TokenStats, backward_all
from trainers.losses.normalisation import denominator, token_weights
from trainers.losses.tokens import TimeArray, sampling_times
from trainers.optimizer import clip_and_step
from trainers.policy import Policy
from trainers.reference import ReferenceScores
from trainers.update_settings import UpdateSettings
from trainers.world import ALONE, World


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """Measurements of one step, before the weights change. Ratios are per trained token."""

    loss: float
    grad_norm: float
    """L2 norm before clipping."""
    mean_ratio: float
    """Mean of pi / mu. It is near 1 if the recorded logprobs are those of the sampled distribution."""
    ess: float
    """Effective sample size of pi / mu as a share of the tokens, before truncation."""
    rollout_ess: float
    """The same for rollouts, each with the product of its tokens' ratios; lr_rule = "ess" uses it."""
    kl: float
    """KL(mu, pi) by the k3 estimator, r - 1 - log r (Schulman 2020), nats per token."""
    clip_fraction: float
    """Share of tokens whose gradient the loss cut."""
    masked: float
    """Share of tokens that corrections masked. They count in every denominator."""
    entropy: float
    """Mean of -log pi over the tokens that mu sampled, an estimate of the policy's entropy in nats per
    token."""
    lr: float
    """Learning rate of the step."""
    baseline: float
    """The baseline that "minimum_variance" subtracted from the rewards; else 0."""
    tokens: int
    rollouts: int
    reference_kl: float | None = None
    """KL(pi, pi_ref) by the k3 estimator, nats per token; None without a KL term in the loss."""
    teacher_kl: float | None = None
    """Mean KL(pi, teacher) at a token's position, in nats; None if the loss does not compare them."""

    def as_dict(self) -> dict[str, float]:
        """The metrics that there are, by name."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: float(value) for name, value in values.items() if value is not None}


def policy_update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    advantages: Sequence[float | FloatArray],
    settings: UpdateSettings,
    proximal: Sequence[FloatArray] | None = None,
    world: World = ALONE,
    ages: Sequence[IdArray] | None = None,
    references: ReferenceScores | None = None,
    teacher: Policy | None = None,
) -> UpdateMetrics:
    """Take one optimizer step on `rows`, with one advantage per row (a number, or float [T]).

    `proximal` has the proximal policy's logprobs, [T] per row. It is required if the pass itself does not
    compute `settings.proximal`, and replaces it otherwise. `ages` is the staleness of each token, [T] per
    row, which "loglinear" needs. `references` are the scores that `settings.kl` and `settings.distillation`
    need, and `teacher` is the model whose whole distributions are compared. Raises `TrainerError` for lengths
    that do not match, a batch without trained tokens, or a gradient that is not finite (the weights are then
    unchanged).
    """
    batch = _checked(rows, advantages, settings, proximal, ages, references)
    optimizer.zero_grad(set_to_none=True)
    baseline = _baseline(policy, settings, world)
    stats = _add(Forward(policy, settings, teacher), batch, world, baseline)
    return _step(policy, optimizer, settings, stats, baseline, len({row.rollout_id for row in rows}))


class GradientAccumulation:
    """One optimizer step whose batch arrives in parts; equal to `policy_update` on the whole, up to rounding.

    The summed gradients are divided by the batch's denominator once it is known. Equal parts in an equal
    order give equal bits, whenever they arrive. Nothing else may touch the gradients before `step`.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        settings: UpdateSettings,
        world: World = ALONE,
        teacher: Policy | None = None,
    ) -> None:
        self.policy = policy
        self.teacher = teacher
        self.optimizer = optimizer
        self.settings = settings
        self.world = world
        self._stats: list[TokenStats] = []
        self._rollouts: set[str] = set()
        self._denominator = 0
        self._baseline = _baseline(policy, settings, world)
        optimizer.zero_grad(set_to_none=True)

    def add(
        self,
        rows: Sequence[Row],
        advantages: Sequence[float | FloatArray],
        proximal: Sequence[FloatArray] | None = None,
        ages: Sequence[IdArray] | None = None,
        references: ReferenceScores | None = None,
    ) -> None:
        """Add the gradients of some rollouts, with all rows of each. Rollouts without trained tokens count in
        denominators only.

        Raises `TrainerError` as `policy_update` does, and for rows of a rollout that was added before.
        """
        again = self._rollouts & {row.rollout_id for row in rows}
        if again:
            raise TrainerError(
                f"Rollout {min(again)} is in two parts of a batch. Add all its rows in one part."
            )
        if any(row.mask.any() for row in rows):
            part = _checked(rows, advantages, self.settings, proximal, ages, references, total=1)
            forward = Forward(self.policy, self.settings, self.teacher)
            self._stats += _add(forward, part, self.world, self._baseline)
        self._rollouts |= {row.rollout_id for row in rows}
        self._denominator += denominator(rows, self.settings.normalisation)

    def step(self) -> UpdateMetrics:
        """Take the step. Raises `TrainerError` if no trained token was added or the gradient is not
        finite.
        """
        if not self._stats:
            raise TrainerError("The batch has no trained token: there is no step to take.")
        rollouts = len(self._rollouts)
        whole = self._denominator
        return _step(self.policy, self.optimizer, self.settings, self._stats, self._baseline, rollouts, whole)


def _checked(
    rows: Sequence[Row],
    advantages: Sequence[float | FloatArray],
    settings: UpdateSettings,
    proximal: Sequence[FloatArray] | None,
    ages: Sequence[IdArray] | None,
    references: ReferenceScores | None,
    total: int | None = None,
) -> list[Item]:
    scores = references or ReferenceScores()
    given = (advantages, proximal, ages, scores.logprobs, scores.top)
    if {len(each) for each in given if each is not None} != {len(rows)}:
        raise TrainerError(
            f"{len(rows)} rows need as many advantages (and proximal logprobs, ages and reference scores, if "
            f"given); got {len(advantages)}."
        )
    _check_references(settings, scores)
    if not any(row.mask.any() for row in rows):
        raise TrainerError(
            "The batch has no trained token; drop groups of equal reward only while others remain."
        )
    if proximal is None and (settings.proximal not in ("behaviour", "current", "loglinear")):
        raise TrainerError(
            f"proximal = {settings.proximal!r} needs the logprobs of the proximal policy: pass `proximal`."
        )
    if proximal is None and ages is None and settings.proximal == "loglinear":
        raise TrainerError("proximal = 'loglinear' needs the staleness of each token: pass `ages`.")
    items = []
    times = _times(rows) if settings.whole_rollouts else [np.zeros(len(row.ids), np.int64) for row in rows]
    for index, (row, weights) in enumerate(
        zip(rows, token_weights(rows, settings.normalisation, total), strict=True)
    ):
        advantage = np.asarray(advantages[index], dtype=np.float32)
        old = None if proximal is None else np.asarray(proximal[index], dtype=np.float32)
        age = None if ages is None else ages[index]
        reference = None if scores.logprobs is None else np.asarray(scores.logprobs[index], np.float32)
        top = None if scores.top is None else scores.top[index]
        token_arrays = [each for each in (old, age, reference) if each is not None]
        if advantage.shape not in ((), row.ids.shape) or any(
            each.shape != row.ids.shape for each in token_arrays
        ):
            raise TrainerError(
                f"Rollout {row.rollout_id}: advantages, proximal logprobs or ages do not have the row's "
                "length."
            )
        if row.mask[:1].any():
            raise TrainerError(
                f"Rollout {row.rollout_id}: the first token of a row has no context and cannot be trained."
            )
        if row.mask.any() or not settings.whole_rollouts:
            items.append(
                Item(
                    row,
                    np.broadcast_to(advantage, row.ids.shape),
                    weights,
                    times[index],
                    old,
                    age,
                    reference,
                    top,
                )
            )
    return items


def _check_references(settings: UpdateSettings, scores: ReferenceScores) -> None:
    """Raises `TrainerError` if the loss has a term for which the scores are missing."""
    if settings.kl is not None and settings.kl.use == "loss" and scores.logprobs is None:
        raise TrainerError("kl needs the logprobs of the reference policy: pass `references`.")
    if settings.distillation is not None and settings.distillation.most_likely and scores.top is None:
        raise TrainerError("distillation needs the teacher's likeliest tokens: pass `references`.")


def _times(rows: Sequence[Row]) -> list[TimeArray]:
    """When each token was sampled relative to the others of its rollout; see `sampling_times`."""
    own: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        own.setdefault(row.rollout_id, []).append(index)
    by_row = {
        index: times
        for indices in own.values()
        for index, times in zip(indices, sampling_times([rows[index] for index in indices]), strict=True)
    }
    return [by_row[index] for index in range(len(rows))]


def _baseline(policy: Policy, settings: UpdateSettings, world: World) -> MinimumVariance | None:
    if settings.baseline == "none":
        return None
    if world.size > 1:
        raise TrainerError(
            "baseline = 'minimum_variance' needs the gradient of each rollout, and several processes add "
            "theirs up: set trainer.processes = 1."
        )
    return MinimumVariance(policy)


def _add(
    forward: Forward, items: Sequence[Item], world: World, baseline: MinimumVariance | None
) -> list[TokenStats]:
    """Add the gradients of all items to the parameters or, rollout by rollout, to the baseline."""
    if baseline is None:
        return backward_all(forward, items, world)
    stats = []
    rollouts: dict[str, list[Item]] = {}
    for item in items:
        rollouts.setdefault(item.row.rollout_id, []).append(item)
    for rollout_id, own in rollouts.items():
        trained = [item.advantages[item.row.mask != 0] for item in own]
        if not any(map(len, trained)):
            continue
        reward = reward_of(rollout_id, torch.from_numpy(np.concatenate(trained)))
        # With an advantage of 1 the gradient is the rollout's score G_i; the baseline multiplies it by
        # R_i - b once b is known.
        scores = [replace(item, advantages=np.ones_like(item.advantages)) for item in own]
        own_stats = backward_all(forward, scores, world)
        baseline.add(reward, sum(part.loss for part in own_stats))
        stats += own_stats
    return stats


def _step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    settings: UpdateSettings,
    stats: Sequence[TokenStats],
    baseline: MinimumVariance | None,
    rollouts: int,
    whole: int | None = None,
) -> UpdateMetrics:
    """Step along the accumulated gradients divided by `whole`. Raises `TrainerError` if they are not
    finite.
    """
    if baseline is not None:
        baseline.apply()
    if whole is not None:
        for parameter in policy.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(whole)
    log_weight_R = _log_weights(stats)
    lr = step_size(settings, log_weight_R)
    norm = _clip_and_step(policy, optimizer, settings, lr)
    loss = sum(part.loss for part in stats) if baseline is None else baseline.loss
    log_ratio_N = torch.cat([part.log_ratio_N for part in stats])
    ratio_N = log_ratio_N.exp()
    return UpdateMetrics(
        loss=loss if whole is None else loss / whole,
        grad_norm=norm,
        mean_ratio=float(ratio_N.mean()),
        ess=float(effective_sample_size(log_ratio_N)),
        rollout_ess=float(effective_sample_size(log_weight_R)),
        kl=float((ratio_N - 1 - log_ratio_N).mean()),
        clip_fraction=float(torch.cat([part.clipped_N for part in stats]).float().mean()),
        masked=float(torch.cat([part.masked_N for part in stats]).float().mean()),
        entropy=float(-torch.cat([part.logprobs_N for part in stats]).mean()),
        lr=lr,
        baseline=0.0 if baseline is None else baseline.value,
        tokens=log_ratio_N.numel(),
        rollouts=rollouts,
        reference_kl=_reference_kl(stats),
        teacher_kl=_teacher_kl(stats),
    )


def _reference_kl(stats: Sequence[TokenStats]) -> float | None:
    known = [part.log_reference_N for part in stats if part.log_reference_N is not None]
    if not known:
        return None
    log_ratio_N = torch.cat(known)
    return float((log_ratio_N.exp() - 1 - log_ratio_N).mean())


def _teacher_kl(stats: Sequence[TokenStats]) -> float | None:
    known = [part.divergence_N for part in stats if part.divergence_N is not None]
    return float(torch.cat(known).mean()) if known else None


def _log_weights(stats: Sequence[TokenStats]) -> Tensor:
    """Sum of log(pi / mu) over the trained tokens of each rollout, float64 [R], sorted by rollout id."""
    sums: dict[str, float] = {}
    for part in stats:
        sums_R = torch.zeros(len(part.rollouts), dtype=torch.float64)
        sums_R.index_add_(0, part.rollout_N, part.log_ratio_N.double())
        for rollout_id, value in zip(part.rollouts, sums_R.tolist(), strict=True):
            sums[rollout_id] = sums.get(rollout_id, 0.0) + value
    return torch.tensor([sums[rollout_id] for rollout_id in sorted(sums)], dtype=torch.float64)


def _clip_and_step(
    policy: Policy, optimizer: torch.optim.Optimizer, settings: UpdateSettings, lr: float
) -> float:
    """`clip_and_step` with this step's learning rate; afterwards the optimizer has the setting's again."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    try:
        return clip_and_step(policy, optimizer, settings.max_grad_norm)
    finally:
        for group in optimizer.param_groups:
            group["lr"] = settings.lr
