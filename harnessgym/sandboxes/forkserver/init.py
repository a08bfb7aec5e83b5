"""The init process of a rollout: starts the harness, reaps orphans, reports how the harness ended, and kills
every process of the rollout.

With namespaces it is PID 1: the kernel kills everything in the rollout when it leaves, and nothing inside can
signal or trace it. Without, it is a subreaper: whatever the harness double-forks comes back to it as a child,
and is killed.
"""

import os
import resource
import select
import signal
import socket
import time
from typing import NoReturn

from . import kernel, program, walls
from .wire import ForkEvent, ForkOrder, send_event


def supervise(channel: socket.socket, order: ForkOrder) -> NoReturn:
    """Runs one rollout to its end. The channel's end of file, or any byte on it, means: stop now."""
    try:
        harness, wake = _start(channel, order)
    except OSError as error:
        send_event(channel, ForkEvent("failed", message=f"{error.strerror or error}"))
        os._exit(1)
    status, timed_out = _wait(harness, channel.fileno(), wake, order.timeout_s)
    _kill_the_rest(order.namespaces)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    signal_number = -code if code < 0 else None
    send_event(
        channel, ForkEvent("exited", code if code >= 0 else None, signal_number, cpu_s, timed_out=timed_out)
    )
    os._exit(0)


def _start(channel: socket.socket, order: ForkOrder) -> tuple[int, int]:
    """Returns the harness's pid and a descriptor that becomes readable whenever a child ends."""
    os.setsid()
    if order.namespaces:
        kernel.set_dumpable(False)
        listener = walls.build(order)
        if listener is not None:
            send_event(channel, ForkEvent("listening"), [listener.fileno()])
            listener.close()
    else:
        kernel.become_subreaper()
    walls.set_limits(order)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    harness = os.fork()
    if harness == 0:
        try:
            for descriptor in (channel.fileno(), wake, waker):
                os.close(descriptor)
            walls.lock(order)
            program.run(order)
        except OSError as error:
            os.write(2, f"The sandbox could not start the harness: {error}\n".encode())
        finally:
            os._exit(125)
    send_event(channel, ForkEvent("started"))
    return harness, wake


def _wait(harness: int, channel: int, wake: int, timeout_s: float) -> tuple[int, bool]:
    """Waits for the harness. Returns its wait status, and whether it was ended because its time was up.

    The node can also end it, through the channel.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # only the harness may hold its own pipes
        os.dup2(null, stream)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(wake, select.POLLIN)
    deadline = time.monotonic() + timeout_s if timeout_s else None
    timed_out = False
    while True:
        status = _reap(harness)
        if status is not None:
            return status, timed_out
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        for descriptor, _ in poll.poll(None if left is None else left * 1000 + 1):
            if descriptor == channel:
                poll.unregister(channel)
                os.kill(harness, signal.SIGKILL)
            else:
                os.read(wake, 4096)
        if left == 0.0:
            deadline = None
            timed_out = True
            os.kill(harness, signal.SIGKILL)


def _reap(harness: int) -> int | None:
    """Collects every child that has ended; the harness's status if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == harness:
            return status
        if pid == 0:
            return None


def _kill_the_rest(namespaces: bool) -> None:
    """Kills and collects until there is no child left, so that the time they used is counted."""
    while True:
        try:
            if namespaces:
                os.kill(-1, signal.SIGKILL)
            else:
                for pid in children():
                    os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list[int]:
    """Direct children of this process.

    Needs a kernel with CONFIG_PROC_CHILDREN, which distributions enable.
    """
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]
