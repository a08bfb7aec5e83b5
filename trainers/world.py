"""The processes that train one policy together on one machine: how they start, communicate and end.

Rank 0 is the leader: only it uses the store, and all processes follow its orders (`trainers.trained_policy`).
`launch` starts the processes and watches them. If one dies the others are ended, because they cannot continue
without it. All of them die with the process that started them.
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
"""When one process has sent no heartbeat for this long, the trainer stops its own, and the supervisor ends
all processes."""
_COLLECTIVE_TIMEOUT = timedelta(days=365)
"""Practically no timeout: followers wait for an order as long as the leader waits for groups. `launch`
detects dead processes."""


@dataclass(frozen=True, slots=True)
class World:
    """One process's rank among those that train a policy."""

    rank: int = 0
    size: int = 1
    device: Device = "cpu"

    def take_device(self) -> None:
        """Select the GPU of this rank, if device is cuda. Raises `TrainerError` if there is none."""
        if self.device == "cuda":
            if torch.cuda.device_count() <= self.rank:
                raise TrainerError(
                    f"trainer.device is cuda, and the trainer needs {self.size} GPUs, one per process; there "
                    f"are {torch.cuda.device_count()}. Set fewer trainer.processes, or "
                    'trainer.device = "cpu".'
                )
            torch.cuda.set_device(self.rank)

    def lead(self, *order: Any) -> None:
        """Send an order to all followers; see `next_order`. Does nothing in a follower or a single
        process.
        """
        if self.size > 1 and self.rank == 0:
            self.broadcast(order)

    def next_order(self) -> tuple[Any, ...]:
        """In a follower: wait for the leader's next order."""
        order: tuple[Any, ...] = self.broadcast(())
        return order

    def broadcast(self, value: T) -> T:
        """Return the leader's value in every process."""
        if self.size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank, in every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values

    def parts(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of rows for each process, balanced by tokens: the longest row first, to the process that
        has the fewest.
        """
        parts: list[list[int]] = [[] for _ in range(self.size)]
        tokens = [0] * self.size
        for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            least = tokens.index(min(tokens))
            parts[least].append(index)
            tokens[least] += lengths[index]
        return [sorted(part) for part in parts]


ALONE = World()
"""The world of a trainer with one process."""


def launch(size: int, device: Device, work: Callable[[World], None]) -> None:
    """Run `work` in `size` connected processes, forked from this one, and wait until all have ended.

    Raises `TrainerError` with the message of a `HarnessGymError` in any of them, and `SystemExit` if one ends
    in another way before its work is done; the others are then killed.
    """
    fork = multiprocessing.get_context("fork")
    errors: SimpleQueue[str] = fork.SimpleQueue()
    listeners = [heartbeat.HeartbeatListener() for _ in range(size)]
    with socket.create_server((_LOOPBACK, 0)) as listener:
        members = [
            fork.Process(
                target=_take_part,
                args=(World(rank, size, device), work, listener, listeners, errors, os.getpid()),
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
    if not errors.empty():
        raise TrainerError(errors.get())
    if failed:
        raise SystemExit(
            f"Of the {size} processes of the trainer {'; '.join(failed)}. The others were ended with it."
        )


def _take_part(
    world: World,
    work: Callable[[World], None],
    listener: socket.socket,
    listeners: Sequence[heartbeat.HeartbeatListener],
    errors: "SimpleQueue[str]",
    parent: int,
) -> None:
    """Connect one process to the others and run its work."""
    die_with_parent(parent)
    heartbeat.Heartbeat(listeners[world.rank].far.dup()).start()
    for each in listeners:
        each.close()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address = listener.getsockname()
    # Rank 0 serves the rendezvous on the socket that `launch` bound before the fork, so no port is chosen
    # first and bound later, which another process could take in between.
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
            backend, store=store, rank=world.rank, world_size=world.size, timeout=_COLLECTIVE_TIMEOUT
        )
        work(world)
        torch.distributed.destroy_process_group()
    except HarnessGymError as error:
        errors.put(str(error))
        raise SystemExit(1) from None


def _first_failure(members: Sequence[BaseProcess]) -> list[str]:
    """Wait until all have ended or some have failed; describes those that failed."""
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
    """How a process ended, as text."""
    return (
        f"was killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"ended with status {code}"
    )
