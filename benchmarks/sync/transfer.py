"""Versions over a throttled loopback: publish, fetch, install, in full and as a delta."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from torch import Tensor

from trainers.weights.chain import read_from, read_version
from trainers.weights.mirror import Mirror
from trainers.weights.publish import BaseVersion, publish, publish_full
from trainers.weights.settings import MirrorSettings
from trainers.weights.version_server import build_app

_KEY = "benchmark-of-sync"
MBIT_S = (100, 1_000, 10_000)


def measure(
    old: dict[str, Tensor], new: dict[str, Tensor], root: Path, rates: tuple[int, ...]
) -> Iterator[dict[str, float]]:
    """For each rate in Mbit/s: wall seconds from weights in the trainer to verified weights beside an
    engine, both ways.
    """
    for number, rate in enumerate(rates):
        for kind in ("full", "delta"):
            yield {
                "mbit_s": rate,
                "kind": kind,
                **_one(old, new, root / f"{number}-{kind}", rate, delta=kind == "delta"),
            }


def _one(
    old: dict[str, Tensor], new: dict[str, Tensor], root: Path, rate: int, *, delta: bool
) -> dict[str, float]:
    there, here = root / "there", root / "here"
    publish_full(there, 0, None, old, 0, "bench")
    if delta:
        shutil.copytree(there, here)
    with serving(there) as url:
        mirror = Mirror(MirrorSettings(url=url, folder=here, key=_KEY, bytes_per_s=rate * 1e6 / 8))
        began = time.perf_counter()
        if delta:
            publish(there, 1, 0, new, 1, "bench", base=BaseVersion(0, old))
        else:
            publish_full(there, 1, 0, new, 1, "bench")
        published = time.perf_counter()
        path = mirror.fetch(1)
        fetched = time.perf_counter()
        _, got = read_from(0, old, path) if delta else read_version(path)
        done = time.perf_counter()
        mirror.close()
    assert all(got[name].equal(tensor) for name, tensor in new.items())
    size = mirror.fetched_bytes
    shutil.rmtree(root)
    return {
        "bytes": size,
        "publish_s": published - began,
        "fetch_s": fetched - published,
        "install_s": done - fetched,
        "total_s": done - began,
    }


def break_even_mbit_s(full: dict[str, float], delta: dict[str, float]) -> float | None:
    """The rate above which the full version is there sooner; None if a delta costs no more time than it saves
    at any rate.

    From publishing and installing as measured: sizes over the rate make up for the difference.
    """
    extra = delta["publish_s"] + delta["install_s"] - full["publish_s"] - full["install_s"]
    return 8e-6 * (full["bytes"] - delta["bytes"]) / extra if extra > 0 else None


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """The version server on a loopback port; its address."""
    config = uvicorn.Config(build_app(root, _KEY), host="127.0.0.1", port=0, log_level="error")
    listener = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
