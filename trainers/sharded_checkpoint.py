"""Checkpoints of a policy that is sharded over processes, loadable by any other number of them.

Every process writes the pieces it holds, and one the index (torch.distributed.checkpoint). What is read is the same tensors
bit for bit, cut as the reading processes need them: one process without shards is a case like any other. Weights and optimizer
only; the rest of a `checkpoint.Checkpoint` is the same for all processes. The trainers here run in one process and do not need
this.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from harnessgym.errors import TrainerError


def save_sharded(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write weights and optimizer to a new folder; all processes of the group together, each with its part of both."""
    with _one_process_is_meant():
        save(_state(model, optimizer), checkpoint_id=folder)


def load_sharded(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read them into a model and an optimizer of the same shape, however they are sharded.

    Raises `TrainerError` if the folder holds no whole checkpoint: the index is written last.
    """
    if not (folder / ".metadata").is_file():
        raise TrainerError(f"{folder} holds no whole checkpoint: its index is missing. Resume from an earlier one.")
    state = _state(model, optimizer)
    with _one_process_is_meant():
        load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """By parameter name; tensors are this process's shards. An optimizer that has not stepped yet gets its state here."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """Torch warns of a process without a group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
