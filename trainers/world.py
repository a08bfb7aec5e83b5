"""The processes that train one policy together, on one machine: how they start, speak to each other, and end.

Rank 0 leads: it alone knows the store, and its orders are done by all (`trainers.trained_policy`). `launch`
starts the processes and watches them. One that dies ends all others, because none can go on without it; they
die with whoever started them.
"""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any, Literal, TypeVar

import torch

from harnessgym import heartbeat
from harnessgym.errors import HarnessGymError, TrainerError
from harnessgym.process import die_with_parent

T = TypeVar("T")
Device = Literal["cpu", "cuda"]
_LOOPBACK = "127.0.0.1"
_QUIET_S = 5.0
"""Once one process has not beaten for so long, the trainer does not beat any more: its supervisor then
ends all of them."""
_PATIENCE = timedelta(days=365)
"""Followers wait for an order as long as the leader waits for groups. Who has died is seen by `launch`,
not by a timeout."""


@dataclass(frozen=True, slots=True)
class World:
    """One process's place among those that train a policy."""

    rank: int = 0
    size: int = 1
    device: Device = "cpu"

    def take_device(self) -> None:
        """Compute on the GPU of this rank, if on any. Raises `TrainerError` if there is none."""
        if self.device == "cuda":
            if torch.cuda.device_count() <= self.rank:
                raise TrainerError(
                    f"trainer.device is cuda, but of the {self.size} GPUs that the trainer needs, one for "
                    "each of its "
                    f"processes, there are {torch.cuda.device_count()}. Set fewer trainer.processes, or "
                    'trainer.device = "cpu".'
                )
            torch.cuda.set_device(self.rank)

    def lead(self, *order: Any) -> None:
        """Tell all followers to do something; see `heard`. In a follower, and alone, does nothing."""
        if self.size > 1 and self.rank == 0:
            self.shared(order)

    def heard(self) -> tuple[Any, ...]:
        """Wait for the leader's next order, in a follower."""
        order: tuple[Any, ...] = self.shared(())
        return order

    def shared(self, value: T) -> T:
        """The leader's value, in every process."""
        if self.size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def everyones(self, value: T) -> list[T]:
        """The values of all processes by rank, in every process."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value)
        return found

    def parts(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of rows for each process, so that all have about as many tokens: the longest first, to
        whoever has least.
        """
        parts: list[list[int]] = [[] for _ in range(self.size)]
        tokens = [0] * self.size
        for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            least = tokens.index(min(tokens))
            parts[least].append(index)
            tokens[least] += lengths[index]
        return [sorted(part) for part in parts]


ALONE = World()
"""Of a trainer that is one process."""


def launch(size: int, device: Device, work: Callable[[World], None]) -> None:
    """Run `work` in `size` processes that can reach each other, forked from this one, and wait until all have
    ended.

    Raises `TrainerError` with the message of an error of ours in any of them, and `SystemExit` if one ends
    otherwise before its work is done; the others are then killed.
    """
    fork = multiprocessing.get_context("fork")
    told: SimpleQueue[str] = fork.SimpleQueue()
    listeners = [heartbeat.Listener() for _ in range(size)]
    with socket.create_server((_LOOPBACK, 0)) as listener:
        members = [
            fork.Process(
                target=_take_part,
                args=(World(rank, size, device), work, listener, listeners, told, os.getpid()),
            )
            for rank in range(size)
        ]
        for member in members:
            member.start()
    for each in listeners:
        each.started()
    heartbeat.follow(alive=lambda: all(each.look().seconds < _QUIET_S for each in listeners))
    try:
        failed = _first_failure(members)
    finally:
        for member in members:
            member.kill()
            member.join()
        heartbeat.follow()
        for each in listeners:
            each.close()
    if not told.empty():
        raise TrainerError(told.get())
    if failed:
        raise SystemExit(
            f"Of the {size} processes of the trainer {'; '.join(failed)}. The others were ended with it."
        )


def _take_part(
    world: World,
    work: Callable[[World], None],
    listener: socket.socket,
    listeners: Sequence[heartbeat.Listener],
    told: "SimpleQueue[str]",
    parent: int,
) -> None:
    """Life of one process."""
    die_with_parent(parent)
    heartbeat.Heartbeat(listeners[world.rank].far.dup()).start()
    for each in listeners:
        each.close()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address = listener.getsockname()
    descriptor = listener.detach()
    if world.rank:
        os.close(descriptor)
    try:
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            address[0],
            address[1],
            world.size,
            world.rank == 0,
            master_listen_fd=None if world.rank else descriptor,
        )
        backend = "cpu:gloo,cuda:nccl" if world.device == "cuda" else "gloo"
        torch.distributed.init_process_group(
            backend, store=store, rank=world.rank, world_size=world.size, timeout=_PATIENCE
        )
        work(world)
        torch.distributed.destroy_process_group()
    except HarnessGymError as error:
        told.put(str(error))
        raise SystemExit(1) from None


def _first_failure(members: Sequence[BaseProcess]) -> list[str]:
    """Wait for all, or until some have failed: which, and how."""
    running = {member.sentinel: (rank, member) for rank, member in enumerate(members)}
    while running:
        ended = [running.pop(sentinel) for sentinel in wait(list(running)) if isinstance(sentinel, int)]
        for _, member in ended:
            member.join()
        if failed := [
            f"rank {rank} (pid {member.pid}) {_end(member.exitcode)}"
            for rank, member in ended
            if member.exitcode
        ]:
            return failed
    return []


def _end(code: int | None) -> str:
    """How a process ended, for people."""
    return (
        f"was killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"ended with status {code}"
    )
