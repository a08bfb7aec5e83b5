"""Shards a policy or critic and its optimizer over the processes of a world (FSDP2), and gathers both in the
leader.

The gathered state does not depend on the number of shards, bit for bit, so there is one checkpoint format.
Importing this module takes a second, so a trainer with one process does not import it.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.optim import Optimizer

from trainers.policy import Policy
from trainers.value_function import Critic
from trainers.world import World

_GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
_SCATTER = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def shard(model: Policy | Critic, world: World, methods: Sequence[str] = ()) -> None:
    """Keep this process's shard of each weight, on its device. `methods` are those that compute; if not
    given, those of a policy that is trained, or of a critic.
    """
    mesh = init_device_mesh(world.device, (world.size,))
    # Gradients are summed over the processes, not averaged: each token's weight already includes the
    # denominator of the whole batch.
    for module in (*model.blocks, model):
        sharded = fully_shard(module, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    trained = ("logprobs", "likeliest", "compared") if isinstance(model, Policy) else ("values",)
    for method in methods or trained:
        register_fsdp_forward_method(model, method)


def gather(model: Policy | Critic, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The unsharded `state_dict()` of both in the leader, in main memory; empty in the other processes.

    All processes call this together.
    """
    weights = gather_weights(model)
    # Before the first step there is no state. torch would then take a step to create one.
    if not optimizer.state:
        return weights, optimizer.state_dict()
    named: Any = get_optimizer_state_dict(model, optimizer, options=_GATHER)
    if not named:
        return {}, {}
    # torch names the parameters; an optimizer in one process numbers them. The checkpoint has numbers.
    index = {name: number for number, name in enumerate(_trained(model))}
    state = {index[name]: values for name, values in named["state"].items()}
    return weights, {
        "state": dict(sorted(state.items())),
        "param_groups": optimizer.state_dict()["param_groups"],
    }


def gather_weights(model: Policy | Critic) -> dict[str, Tensor]:
    """The unsharded `state_dict()` in the leader, in main memory; empty in the other processes. All processes
    call this together.
    """
    state: Any = get_model_state_dict(model, options=_GATHER)
    weights: dict[str, Tensor] = state
    return weights


def scatter_weights(model: Policy | Critic, weights: dict[str, Tensor]) -> None:
    """The inverse of `gather_weights`. All processes call this together; only the leader's weights count."""
    set_model_state_dict(model, dict(weights), options=_SCATTER)


def scatter(
    model: Policy | Critic, optimizer: Optimizer, weights: dict[str, Tensor], state: dict[str, Any] | None
) -> None:
    """The inverse of `gather`: put the leader's weights and optimizer state into the shards of all processes.
    None leaves the optimizer unchanged.

    All processes call this together. Only the leader's arguments count, but `state` must be None in all
    processes or in none.
    """
    scatter_weights(model, weights)
    if state is None:
        return
    names = _trained(model)
    named: dict[str, Any] = {}
    if state:
        groups = [
            group | {"params": [names[number] for number in group["params"]]}
            for group in state["param_groups"]
        ]
        named = {
            "state": {names[number]: values for number, values in state["state"].items()},
            "param_groups": groups,
        }
    set_optimizer_state_dict(model, optimizer, named, options=_SCATTER)


def _trained(model: Policy | Critic) -> list[str]:
    """Names of the optimizer's parameters, in its order."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]
