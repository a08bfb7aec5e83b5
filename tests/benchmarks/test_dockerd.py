"""A private engine: keeps its images, and whoever starts it ends what a killed one left."""

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import docker
from benchmarks.sandbox.dockerd import Dockerd, dockerd_available
from tests.support.shell_root import shell_root

FOREVER = "while :; do :; done; : hg-dockerd-test"

if (problem := dockerd_available()) is not None:
    pytest.skip(problem, allow_module_level=True)


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="hg-dockerd-", dir="/tmp"))
    yield path
    with Dockerd(path, network=False):
        pass
    shutil.rmtree(path)


def processes(folder):
    """Command lines of engines and what they start that name the folder, and of the containers that these
    tests start.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        engine = str(folder) in " ".join(command) and Path(command[0]).name.startswith(
            ("dockerd", "containerd")
        )
        if engine or FOREVER in command:
            found.append(command)
    return found


def images(engine):
    client = docker.DockerClient(engine.host)
    try:
        return {tag for image in client.images.list() for tag in image.tags}
    finally:
        client.close()


def load(engine):
    client = docker.DockerClient(engine.host)
    client.api.import_image_from_data(shell_root(), repository="kept", tag="1")
    client.close()


def run(engine):
    """A container that waits for ever."""
    client = docker.DockerClient(engine.host)
    host = client.api.create_host_config(network_mode="none")
    made = client.api.create_container("kept:1", ["/bin/sh", "-c", FOREVER], host_config=host)
    client.api.start(made)
    client.close()


def test_images_stay_and_nothing_else_does(folder):
    usual = Path("/sys/class/net/docker0").exists()
    with Dockerd(folder, network=False) as engine:
        load(engine)
        assert processes(folder)
        assert Path("/sys/class/net", engine.bridge).exists()
    assert processes(folder) == []
    assert not Path("/sys/class/net", engine.bridge).exists()
    assert Path("/sys/class/net/docker0").exists() == usual  # another engine's
    assert {path.name for path in folder.iterdir()} == {"data", "log"}
    with Dockerd(folder, network=False) as engine:
        assert images(engine) == {"kept:1"}


def test_what_a_killed_engine_left_is_ended(folder):
    engine = Dockerd(folder, network=False)
    load(engine)
    run(engine)
    engine.stop(signal.SIGKILL)
    assert processes(folder)  # the container's own, which no engine's end ends
    with Dockerd(folder, network=False) as again:
        assert images(again) == {"kept:1"}
        assert sum(Path(command[0]).name == "dockerd" for command in processes(folder)) == 1
    assert processes(folder) == []
    assert not any(str(folder) in line for line in Path("/proc/self/mountinfo").read_text().splitlines())


def test_a_pidfile_that_names_somebody_else_is_left_alone(folder):
    with subprocess.Popen(["sleep", "60"]) as bystander:
        (folder / "docker.pid").write_text(str(bystander.pid))
        with Dockerd(folder, network=False) as engine:
            assert engine.pid != bystander.pid
            assert bystander.poll() is None
        assert bystander.poll() is None
        bystander.kill()


def test_detached_it_says_how_to_reach_it_and_is_ended_by_name(folder):
    command = [sys.executable, "-m", "benchmarks.sandbox.dockerd", "--folder", str(folder), "--no-network"]
    first = subprocess.run([*command, "--detach"], capture_output=True, text=True, check=True).stdout
    assert first == f"export DOCKER_HOST=unix://{folder}/docker.sock\n"
    pid = (folder / "docker.pid").read_text()
    assert (
        subprocess.run([*command, "--detach", "--reuse"], capture_output=True, text=True, check=True).stdout
        == first
    )
    assert (folder / "docker.pid").read_text() == pid
    subprocess.run([*command, "--stop"], check=True)
    assert processes(folder) == []
