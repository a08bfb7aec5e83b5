"""Settings of the whole suite, and what is skipped where a machine lacks it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

from harnessgym.faults.around import CLOCK, library
from harnessgym.sandboxes.bubblewrap import bubblewrap_available
from harnessgym.sandboxes.engine import unavailable as docker_unavailable
from tests.support.flakes import FlakePlugin
from tests.support.postgres import PostgresServer, postgres_available
from tests.support.raylets import ray_available

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("harnessgym", deadline=None)  # a loaded machine is no counterexample
settings.load_profile("harnessgym")

collect_ignore_glob = ["*/samples/*"]  # tasks in other people's formats, tests of theirs among them
_ROOT = Path(__file__).parent
WITH_VLLM = ("proxies/test_upstream_vllm.py", "proxies/test_upstream_vllm_weights.py")
"""Files that share a server: the same worker runs them."""
LONG = (
    *WITH_VLLM,
    "examples/test_recipe_runs.py",
    "benchmarks/test_recovery.py",
    "harnessgym/supervisor/test_silent_processes.py",
    "test_extended_run.py",
    "harnessgym/cluster/test_ray_run.py",
    "harnessgym/cli/test_eval_command.py",
    "test_bad_input_runs.py",
    "benchmarks/test_async_real.py",
)
"""Files that take longest, longest first. They start first, or the others would be waiting for them at the
end."""
NEEDED = {
    "bubblewrap": bubblewrap_available,
    "docker": docker_unavailable,
    "java": lambda: None if shutil.which("javac") else "There is no JDK on this machine.",
    "kubectl": lambda: None if shutil.which("kubectl") else "There is no kubectl on this machine.",
    "postgres": postgres_available,
    "ray": ray_available,
}


def pytest_addoption(parser):
    """The option of the plugin in `tests/support/flakes.py`."""
    parser.addoption(
        "--flakes", action="store_true", help="this run repeats what failed: what passes now is a flake"
    )


def pytest_configure(config):
    """Record flakes, in the process that sees every test."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FlakePlugin(config))


def pytest_collection_modifyitems(items):
    """Long files come first. Tests of what a machine lacks are skipped, saying why; if `HARNESSGYM_REQUIRE`
    names it, they fail.
    """
    ranks = {_ROOT / file: rank for rank, file in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path, len(LONG)))
    required = os.environ.get("HARNESSGYM_REQUIRE", "").split(",")
    for marker, available in NEEDED.items():
        if marker in required or (problem := available()) is None:
            continue
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=problem))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files are distributed as by `--dist loadfile`, but those that share a server go to the same worker."""
    from xdist.scheduler import LoadFileScheduling

    class FileScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "vllm" if file.endswith(WITH_VLLM) else file

    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def anyio_backend():
    """Async tests run on asyncio, which the services use."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres():
    """A private PostgreSQL of this test run."""
    with PostgresServer() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def skewed_clock(tmp_path_factory):
    """Makes the environment of a process whose wall clock is off by some seconds."""
    path = tmp_path_factory.mktemp("clock") / "clock.so"
    path.write_bytes(library())

    def skewed(seconds):
        return {**os.environ, "LD_PRELOAD": str(path), CLOCK: str(seconds)}

    return skewed


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of 6 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
