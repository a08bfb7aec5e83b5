"""One optimizer step on a batch of rows: the arithmetic that every trainer here shares.

What is computed is decoupled PPO (arXiv 2505.24298): the clipped surrogate against a proximal policy, weighted per token by the
truncated ratio between that policy and the one that sampled. Given equal inputs, the step is deterministic.

With a `World` of several processes, each of them calls the same functions with the same rows, computes its part of them, and
gets the metrics of all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from harnessgym.errors import TrainerError
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.corrections.importance_sampling import effective_sample_size, truncated
from trainers.losses.clipped import clipped_surrogate, clipped_tokens
from trainers.losses.normalisation import denominator, token_weights
from trainers.policy import Policy, token_logprobs
from trainers.update_settings import UpdateSettings
from trainers.world import ALONE, World

__all__ = ["GradientAccumulation", "UpdateMetrics", "UpdateSettings", "make_optimizer", "micro_batches", "policy_update"]


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """What one step did. All are measured before the weights change; ratios are per trained token."""

    loss: float
    grad_norm: float
    """L2 norm before clipping."""
    mean_ratio: float
    """Mean of pi / mu: near 1 when the recorded logprobs are those of the distribution that was sampled."""
    ess: float
    """Effective sample size of pi / mu as a share of the tokens, before truncation."""
    kl: float
    """KL(mu, pi) by the k3 estimator, r - 1 - log r (Schulman 2020), nats per token."""
    clip_fraction: float
    """Share of tokens whose gradient the clip cut."""
    entropy: float
    """Mean of -log pi over the sampled tokens: the policy's entropy, estimated on what mu sampled, nats per token."""
    tokens: int
    rollouts: int


def make_optimizer(policy: Policy, settings: UpdateSettings) -> torch.optim.Optimizer:
    """AdamW without weight decay, with the short second-moment memory that few, noisy steps want."""
    return torch.optim.AdamW(policy.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0)


def policy_update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    advantages: Sequence[float | FloatArray],
    settings: UpdateSettings,
    proximal: Sequence[FloatArray] | None = None,
    world: World = ALONE,
) -> UpdateMetrics:
    """Take one optimizer step on `rows`, with one advantage per row (a number, or float [T]).

    `proximal` holds the logprobs [T] per row of a policy to clip ratios against instead of `settings.proximal`. Raises
    `TrainerError` for lengths that do not match, a batch without trained tokens, or a gradient that is not finite (the weights
    are then unchanged).
    """
    batch = _checked(rows, advantages, settings, proximal)
    optimizer.zero_grad(set_to_none=True)
    seen = _backward_all(policy, batch, settings, world)
    norm = _clip_and_step(policy, optimizer, settings)
    return _metrics(seen, norm, len({row.rollout_id for row in rows}))


class GradientAccumulation:
    """One optimizer step whose batch arrives in parts; the same as `policy_update` on all of them, up to rounding.

    Sums of gradients are divided by the batch's denominator once it is known. Equal parts in an equal order give equal bits,
    whenever each of them came. Until `step` nothing else may touch the gradients; begun again, it starts from none.
    """

    def __init__(
        self, policy: Policy, optimizer: torch.optim.Optimizer, settings: UpdateSettings, world: World = ALONE
    ) -> None:
        self.policy, self.optimizer, self.settings, self.world = policy, optimizer, settings, world
        self._seen: list[_Seen] = []
        self._rollouts: set[str] = set()
        self._denominator = 0
        optimizer.zero_grad(set_to_none=True)

    def add(self, rows: Sequence[Row], advantages: Sequence[float | FloatArray]) -> None:
        """Add the gradients of some rollouts, all rows of each; without trained tokens they count in denominators alone.

        Raises `TrainerError` as `policy_update` does, and for rows of a rollout that was added before.
        """
        again = self._rollouts & {row.rollout_id for row in rows}
        if again:
            raise TrainerError(f"Rollout {min(again)} is in two parts of a batch: its rows must be added together.")
        if any(row.mask.any() for row in rows):
            part = _checked(rows, advantages, self.settings, None, total=1)
            self._seen += _backward_all(self.policy, part, self.settings, self.world)
        self._rollouts |= {row.rollout_id for row in rows}
        self._denominator += denominator(rows, self.settings.normalisation)

    def step(self) -> UpdateMetrics:
        """Step on what was added. Raises `TrainerError` if that is nothing, or its gradient is not finite."""
        if not self._seen:
            raise TrainerError("The batch has no trained token: there is no step to take.")
        for parameter in self.policy.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self._denominator)
        norm = _clip_and_step(self.policy, self.optimizer, self.settings)
        found = _metrics(self._seen, norm, len(self._rollouts))
        return replace(found, loss=found.loss / self._denominator)


def micro_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows in groups of similar length whose padded size is at most `max_tokens` (a longer row goes alone)."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and lengths[group[0]] * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class _Item:
    """A row with everything the loss needs about its tokens, each float32 [T]."""

    row: Row
    advantages: FloatArray
    weights: FloatArray
    proximal: FloatArray | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """Per trained token of a micro-batch, float [N] (loss: a sum)."""

    loss: float
    log_ratio_N: Tensor
    logprobs_N: Tensor
    clipped_N: Tensor


def _checked(
    rows: Sequence[Row],
    advantages: Sequence[float | FloatArray],
    settings: UpdateSettings,
    proximal: Sequence[FloatArray] | None,
    total: int | None = None,
) -> list[_Item]:
    if len(rows) != len(advantages) or (proximal is not None and len(proximal) != len(rows)):
        raise TrainerError(
            f"{len(rows)} rows need as many advantages (and proximal logprobs, if given); got {len(advantages)}."
        )
    if not any(row.mask.any() for row in rows):
        raise TrainerError("The batch has no trained token; drop groups of equal reward only while others remain.")
    items = []
    for index, (row, weights) in enumerate(zip(rows, token_weights(rows, settings.normalisation, total), strict=True)):
        advantage = np.asarray(advantages[index], dtype=np.float32)
        old = None if proximal is None else np.asarray(proximal[index], dtype=np.float32)
        if advantage.shape not in ((), row.ids.shape) or (old is not None and old.shape != row.ids.shape):
            raise TrainerError(f"Rollout {row.rollout_id}: advantages or proximal logprobs do not have the row's length.")
        if row.mask[:1].any():
            raise TrainerError(f"Rollout {row.rollout_id}: the first token of a row has no context and cannot be trained.")
        items.append(_Item(row, np.broadcast_to(advantage, row.ids.shape), weights, old))
    return items


def _backward_all(policy: Policy, items: Sequence[_Item], settings: UpdateSettings, world: World) -> list[_Seen]:
    """Add the gradients of all items, micro-batch by micro-batch; each process adds its part of them.

    Shards are exchanged in every pass, so all processes make as many as the one that needs most.
    """
    lengths = [len(item.row.ids) for item in items]
    parts = [[items[index] for index in part] for part in world.parts(lengths)]
    plans = [list(micro_batches([len(item.row.ids) for item in part], settings.micro_batch_tokens)) for part in parts]
    mine, plan = parts[world.rank], plans[world.rank]
    seen = [_backward(policy, [mine[index] for index in indices], settings) for indices in plan]
    for _ in range(max(map(len, plans)) - len(plan)):
        _pass_without_rows(policy)
    return [part for parts in world.everyones(seen) for part in parts]


def _pass_without_rows(policy: Policy) -> None:
    """Add a gradient of zero."""
    (policy(torch.zeros(1, 1, dtype=torch.long, device=policy.cos.device)).sum() * 0.0).backward()


def _clip_and_step(policy: Policy, optimizer: torch.optim.Optimizer, settings: UpdateSettings) -> float:
    """Step along the gradients that are there; their norm before clipping. Raises `TrainerError` if it is not finite."""
    length = torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
    norm = float(length.full_tensor() if hasattr(length, "full_tensor") else length)
    if not np.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise TrainerError(f"The gradient is not finite (norm {norm}); the step was not taken. Check rewards and logprobs.")
    for group in optimizer.param_groups:
        group["lr"] = settings.lr
    optimizer.step()
    return norm


def _backward(policy: Policy, items: Sequence[_Item], settings: UpdateSettings) -> _Seen:
    """Add the micro-batch's gradient; its loss is already divided by the whole batch's denominator, or by 1."""
    longest, device = max(len(item.row.ids) for item in items), policy.cos.device
    ids_BT = _padded([item.row.ids for item in items], longest, device).long()
    mask_BT = _padded([item.row.mask for item in items], longest, device) != 0
    logprobs_N = token_logprobs(policy(ids_BT), ids_BT, settings.temperature)[mask_BT]
    behaviour_N = _padded([item.row.logprobs for item in items], longest, device)[mask_BT]
    advantages_N = _padded([item.advantages for item in items], longest, device)[mask_BT]
    weights_N = _padded([item.weights for item in items], longest, device)[mask_BT]
    known = [item.proximal for item in items if item.proximal is not None]
    if known:
        old_N = _padded(known, longest, device)[mask_BT]
    else:
        old_N = behaviour_N if settings.proximal == "behaviour" else logprobs_N.detach()
    step_N = logprobs_N - old_N
    loss_N = clipped_surrogate(step_N, advantages_N, settings.clip_low, settings.clip_high)
    loss = (weights_N * truncated(old_N - behaviour_N, settings.tis_cap) * loss_N).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    clipped_N = clipped_tokens(step_N.detach(), advantages_N, settings.clip_low, settings.clip_high)
    return _Seen(float(loss.detach()), (logprobs_N - behaviour_N).detach().cpu(), logprobs_N.detach().cpu(), clipped_N.cpu())


def _padded(arrays: Sequence[np.ndarray], length: int, device: torch.device) -> Tensor:
    """[B, length] of right-padded rows."""
    out = np.zeros((len(arrays), length), dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out).to(device)


def _metrics(seen: Sequence[_Seen], grad_norm: float, rollouts: int) -> UpdateMetrics:
    log_ratio_N = torch.cat([part.log_ratio_N for part in seen])
    ratio_N = log_ratio_N.exp()
    return UpdateMetrics(
        loss=sum(part.loss for part in seen),
        grad_norm=grad_norm,
        mean_ratio=float(ratio_N.mean()),
        ess=float(effective_sample_size(log_ratio_N)),
        kl=float((ratio_N - 1 - log_ratio_N).mean()),
        clip_fraction=float(torch.cat([part.clipped_N for part in seen]).float().mean()),
        entropy=float(-torch.cat([part.logprobs_N for part in seen]).mean()),
        tokens=log_ratio_N.numel(),
        rollouts=rollouts,
    )
