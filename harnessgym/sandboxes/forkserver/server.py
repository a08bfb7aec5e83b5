"""The loop of the fork server: one fork per request, one thread, nothing of any rollout in its memory."""

import gc
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from . import init, kernel, walls, warm
from .wire import FORK, READY, ForkEvent, receive_order, send_event


def main() -> None:
    """`forkserver CONTROL_FD UID GID NAMESPACES WARMER...`: becomes UID when it starts as root, warms up,
    serves.
    """
    control_fd, user, group, namespaces, *warmers = sys.argv[1:]
    control = socket.socket(fileno=int(control_fd))
    control.set_inheritable(False)
    sys.argv = sys.argv[:1]
    if os.getuid() == 0 and int(user):
        os.setgroups([])
        os.setgid(int(group))
        os.setuid(int(user))
    kernel.become_subreaper()
    try:
        for name in warmers:
            warm.warm(name)
    # The warmer may be any module and raise anything; the node turns it into an error.
    except Exception as error:  # noqa: BLE001
        control.send(f"The warm-up failed: {type(error).__name__}: {error}".encode())
        return
    gc.collect()
    if left := _sockets() - {control.fileno()}:
        control.send(
            f"The warm-up left {len(left)} sockets open, which all rollouts would share: close them at its "
            "end.".encode()
        )
        return
    gc.freeze()
    kernel.set_dumpable(False)
    control.send(READY)
    _serve(control, namespaces == "1")


def _sockets() -> set[int]:
    """Descriptors of this process that are sockets."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                descriptors.add(int(name))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return descriptors


def _serve(control: socket.socket, namespaces: bool) -> None:
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    alive: set[int] = set()
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == wake:
                os.read(wake, 4096)
                _reap(alive, adopt=namespaces)
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 16, 4)
            if message != FORK:
                return  # the node is gone; so are the channels, and with them every rollout
            pid = os.fork()
            if pid == 0:
                _become_courier(control, [wake, waker], descriptors, namespaces)
            alive.add(pid)
            for number in descriptors:
                os.close(number)


def _reap(alive: set[int], *, adopt: bool) -> None:
    """Collects children that have ended.

    Without namespaces, a child that we did not fork is an orphan of a harness that killed its init.
    """
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        alive.discard(pid)
    if adopt:
        return
    for pid in init.children():
        if pid not in alive:
            os.kill(pid, signal.SIGKILL)


def _become_courier(
    control: socket.socket, wakers: list[int], descriptors: list[int], namespaces: bool
) -> NoReturn:
    """Reads the order only this rollout gets, leaves the shared namespaces, and starts the rollout's init
    in them.
    """
    signal.set_wakeup_fd(-1)
    control.close()
    for number in wakers:
        os.close(number)
    channel = socket.socket(fileno=descriptors[0])
    for stream, number in enumerate(descriptors[1:]):
        os.dup2(number, stream)
        os.close(number)
    try:
        order = receive_order(channel)
        if namespaces:
            walls.leave_the_others()
            if os.fork():
                os._exit(0)
        init.supervise(channel, order)
    except (OSError, EOFError) as error:
        send_event(channel, ForkEvent("failed", message=str(error)))
    finally:
        os._exit(1)
