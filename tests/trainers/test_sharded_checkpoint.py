"""Two real processes on gloo (FSDP2) write what one reads, and the reverse, bit for bit."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from harnessgym.errors import TrainerError
from trainers.policy import Policy, PolicyConfig
from trainers.sharded_checkpoint import load_sharded, save_sharded


def make(seed, mesh=None):
    """A random policy and its optimizer, sharded over a mesh if there is one."""
    torch.manual_seed(seed)
    policy = Policy(PolicyConfig(32, 16, 32, 2, 2, 1, 8, max_position_embeddings=64))
    if mesh is not None:
        fully_shard(policy, mesh=mesh)
    return policy, torch.optim.AdamW(policy.parameters(), lr=0.1)


def train(policy, optimizer):
    for step in range(2):
        policy(torch.arange(12).reshape(2, 6) + step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(policy, optimizer):
    """Weights and optimizer state by name, gathered."""

    def gathered(value):
        return value.full_tensor() if hasattr(value, "full_tensor") else value.detach()

    weights = {name: gathered(value).clone() for name, value in policy.state_dict().items()}
    for name, parameter in policy.named_parameters():
        weights |= {f"{name}: {key}": gathered(value).clone() for key, value in optimizer.state[parameter].items()}
    return weights


def be_one_of_two(rank, folder, action):
    """One process of two: train and save, or load. Leaves what the policy is then, as one process sees it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{action}", rank=rank, world_size=2)
    policy, optimizer = make(1, init_device_mesh("cpu", (2,)))
    if action == "save":
        train(policy, optimizer)
        save_sharded(folder / "two", policy, optimizer)
    else:
        load_sharded(folder / "one", policy, optimizer)
    found = whole(policy, optimizer)
    if rank == 0:
        torch.save(found, folder / f"{action}.pt")
    dist.destroy_process_group()


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.timeout(120)
def test_what_two_processes_saved_one_loads_bit_for_bit(tmp_path):
    processes.start_processes(be_one_of_two, (tmp_path, "save"), nprocs=2, start_method="fork")
    policy, optimizer = make(5)
    load_sharded(tmp_path / "two", policy, optimizer)
    assert same(whole(policy, optimizer), torch.load(tmp_path / "save.pt"))


@pytest.mark.timeout(120)
def test_what_one_process_saved_two_load_bit_for_bit(tmp_path):
    policy, optimizer = make(5)
    train(policy, optimizer)
    save_sharded(tmp_path / "one", policy, optimizer)
    processes.start_processes(be_one_of_two, (tmp_path, "load"), nprocs=2, start_method="fork")
    assert same(whole(policy, optimizer), torch.load(tmp_path / "load.pt"))


def test_a_checkpoint_without_its_index_is_refused(tmp_path):
    policy, optimizer = make(5)
    save_sharded(tmp_path / "one", policy, optimizer)
    (tmp_path / "one" / ".metadata").unlink()
    with pytest.raises(TrainerError, match="no whole checkpoint"):
        load_sharded(tmp_path / "one", policy, optimizer)
