"""The optimizer, and one step of it along accumulated gradients."""

import inspect
import math

import torch

from harnessgym.errors import TrainerError
from trainers.update_settings import UpdateSettings

_BETAS = (0.9, 0.95)


class EagerAdamW(torch.optim.AdamW):
    """`AdamW` without torch's compiler.

    torch imports its compiler, which takes seconds, when an optimizer is made, only to keep these methods
    from being compiled. They are the functions below that decorator; `step` computes no gradients there
    either.
    """

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    state_dict = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.AdamW.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def make_optimizer(policy: torch.nn.Module, settings: UpdateSettings) -> torch.optim.Optimizer:
    """AdamW over the parameters that are trained, without weight decay; its moments as settings say.

    beta_2 = 0.95 forgets old second moments quickly, which suits a run of few, noisy steps.
    """
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    if settings.optimizer == "adamw":
        return EagerAdamW(trained, lr=settings.lr, betas=_BETAS, weight_decay=0.0)
    from bitsandbytes.optim import AdamW8bit

    made: torch.optim.Optimizer = AdamW8bit(trained, lr=settings.lr, betas=_BETAS, weight_decay=0.0)
    return made


def clip_and_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip the accumulated gradients and step; returns their norm before clipping.

    Raises `TrainerError` if the norm is not finite.
    """
    length = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    norm = float(length.full_tensor() if hasattr(length, "full_tensor") else length)
    # Checked before the step: AdamW would write NaN into its moments, and no later batch could recover.
    if not math.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise TrainerError(
            f"The gradient is not finite (norm {norm}); the step was not taken. Check rewards and logprobs."
        )
    optimizer.step()
    return norm
