"""A policy, or a critic, and its optimizer in shards over the processes of a world (FSDP2), and both whole
again in its leader.

What is gathered does not depend on the number of shards, bit for bit: one checkpoint format serves every
number of processes. Importing this takes a second, so whoever trains in one process does not.
"""

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

from trainers.critic import Critic
from trainers.policy import Policy
from trainers.world import World

_GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
_SCATTER = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def shard(model: Policy | Critic, world: World) -> None:
    """Keep this process's shard of each weight, on its device. Gradients are sums over the processes, not
    means.
    """
    mesh = init_device_mesh(world.device, (world.size,))
    for module in (*model.blocks, model):
        sharded = fully_shard(module, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    register_fsdp_forward_method(model, "logprobs" if isinstance(model, Policy) else "values")


def gather(model: Policy | Critic, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """`state_dict()` of both as one process would have them, in the leader's memory; of other processes
    nothing.

    All processes call this together.
    """
    weights = gather_weights(model)
    if not optimizer.state:  # asked for what is not there, the library would take a step
        return weights, optimizer.state_dict()
    found: Any = get_optimizer_state_dict(model, optimizer, options=_GATHER)
    if not found:
        return {}, {}
    index = {name: number for number, name in enumerate(_trained(model))}
    state = {index[name]: values for name, values in found["state"].items()}
    return weights, {
        "state": dict(sorted(state.items())),
        "param_groups": optimizer.state_dict()["param_groups"],
    }


def gather_weights(model: Policy | Critic) -> dict[str, Tensor]:
    """`state_dict()` as one process would have it, in the leader's memory; of other processes nothing.
    Called together.
    """
    weights: Any = get_model_state_dict(model, options=_GATHER)
    found: dict[str, Tensor] = weights
    return found


def scatter_weights(model: Policy | Critic, weights: dict[str, Tensor]) -> None:
    """Undo `gather_weights`. Called together; only the leader's weights count."""
    set_model_state_dict(model, dict(weights), options=_SCATTER)


def scatter(
    model: Policy | Critic, optimizer: Optimizer, weights: dict[str, Tensor], state: dict[str, Any] | None
) -> None:
    """Undo `gather`: the leader's weights and optimizer state into everyone's shards; None leaves the
    optimizer.

    All processes call this together; only the leader's arguments count, but whether there is a state must be
    known to all.
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
    """Names of what the optimizer has, in its order."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]
