"""Ray's head as the supervisor looks at it: a port that answers, or does not, or answers again."""

import contextlib
import socket
import threading
import time

import pytest

from harnessgym.cluster.ray_head import RayHead
from harnessgym.errors import HarnessGymError


@pytest.fixture
def port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def listening(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


def waiting(listener):
    """How many have knocked."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count


def test_a_head_that_stays_away_is_told_with_what_to_do(port):
    head = RayHead(f"127.0.0.1:{port}", max_wait_s=3.0)
    with listening(port):
        assert head.check(now=True)
    assert not head.check(now=True)
    with pytest.raises(
        HarnessGymError,
        match=rf"head at 127.0.0.1:{port} has not answered for 3 s.*ray start --head.*goes on",
    ):
        head.wait()


def test_one_that_comes_back_in_time_is_as_if_it_had_not_been_away(port):
    head = RayHead(f"127.0.0.1:{port}", max_wait_s=60.0)
    assert not head.check(now=True)
    back = []
    threading.Timer(0.5, lambda: back.append(listening(port))).start()
    head.wait()
    assert head.check(now=True)
    back.pop().close()
    head.max_wait_s = 10.0
    assert not head.check(now=True), "its patience begins anew"


def test_it_is_asked_once_a_second(port):
    head = RayHead(f"127.0.0.1:{port}", max_wait_s=60.0)
    began = time.monotonic()
    with listening(port) as listener:
        listener.settimeout(0.0)
        for _ in range(50):
            assert head.check()
        most = 1 + int(time.monotonic() - began)
        assert 1 <= waiting(listener) <= most


def test_it_is_given_up_before_ray_gives_up(monkeypatch, port):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "90")
    assert RayHead(f"[::1]:{port}").max_wait_s == 45.0
