"""Every kind of leak, made on purpose, is found; and what ended is not."""

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.sandbox.leaks import KINDS, Inventory, Place, difference, lasting
from benchmarks.sandbox.witness import Witness
from harnessgym.run_folder import RunFolder
from harnessgym.sandboxes.docker import DockerSettings
from harnessgym.sandboxes.engine import address
from harnessgym.sandboxes.images.layers import ensure
from tests.support.cable import Cable


@pytest.fixture
def place():
    """Short: unix sockets have long paths otherwise."""
    with tempfile.TemporaryDirectory(prefix="hg-leaks-") as folder:
        made = Place(RunFolder(Path(folder) / "run"), Path(folder) / "t")
        made.temporary.mkdir()
        made.run.workspaces.mkdir(parents=True)
        yield made


@pytest.fixture
def witness(place):
    with Witness(place.run.workspaces) as watching:
        yield watching


def came(place, engine, before):
    return difference(before, Inventory.take(place, engine))


def kinds(items):
    return sorted({item.kind for item in items})


@pytest.mark.parametrize("where", ["argument", "environment", "folder"])
def test_a_process_is_found_by_what_it_was_given(place, where):
    before = Inventory.take(place, None)
    given = {"environment": {"env": {"TMPDIR": str(place.temporary)}}, "folder": {"cwd": place.run.root}}.get(
        where, {}
    )
    argument = str(place.run.root / "x") if where == "argument" else "x"
    process = subprocess.Popen(["sh", "-c", "sleep 60; true", argument], start_new_session=True, **given)
    try:
        time.sleep(0.1)
        found = came(place, None, before)
        assert kinds(found) == ["process"]
        assert f"{process.pid}@" in " ".join(item.key for item in found)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    assert lasting(found, lambda: Inventory.take(place, None), 5.0) == []


def test_a_process_of_a_folder_with_a_longer_name_is_not_ours(place):
    before = Inventory.take(place, None)
    process = subprocess.Popen(["sh", "-c", "sleep 60; true", f"{place.run.root}-2/x"])
    try:
        assert came(place, None, before) == []
    finally:
        process.kill()
        process.wait()


def test_folders_torn_files_and_sockets_are_found(place):
    before = Inventory.take(place, None)
    (place.temporary / "harnessgym-graded-x").mkdir()
    (place.run.workspaces / "harnessgym-node-1-x").mkdir()
    (place.run.root / ".processes.json.x").touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.temporary / "s"))
        listener.listen()
        found = came(place, None, before)
        assert [Path(item.key).name for item in found if item.kind == "folder"] == [
            ".processes.json.x", "harnessgym-node-1-x", "harnessgym-graded-x", "s",
        ]  # fmt: skip
        assert [item.what for item in found if item.kind == "socket"] == [str(place.temporary / "s")]
    assert "socket" not in kinds(came(place, None, before))


def test_a_mount_is_found(place):
    point = place.run.workspaces / "m"
    point.mkdir()
    before = Inventory.take(place, None)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        found = came(place, None, before)
        assert [(item.kind, item.key) for item in found] == [("mount", str(point))]
    finally:
        subprocess.run(["umount", point], check=True)


@pytest.mark.docker
def test_everything_of_a_container_is_found_until_it_is_removed(place, witness):
    image = ensure(DockerSettings().image, ())
    before = Inventory.take(place, witness)
    words = [
        "docker",
        "run",
        "--detach",
        "--label",
        witness.label,
        "--network",
        "none",
        "--volume",
        "/data",
        image,
    ]
    made = subprocess.run([*words, "sleep", "600"], check=True, capture_output=True, text=True).stdout.strip()
    try:
        found = came(place, witness, before)
        assert kinds(found) == ["cgroup", "container", "mount", "process", "volume"]
        told = [item.what for item in found if item.kind == "process"]
        assert any("containerd-shim" in words for words in told)
        assert any(words.startswith("sleep") for words in told)
    finally:
        subprocess.run(["docker", "rm", "--force", made], check=True, capture_output=True)
    left = lasting(found, lambda: Inventory.take(place, witness), 5.0)
    assert kinds(left) == ["volume"]
    subprocess.run(["docker", "volume", "rm", left[0].key], check=True, capture_output=True)
    assert came(place, witness, before) == []


@pytest.mark.docker
def test_a_container_that_the_engine_removed_is_remembered_with_its_volumes(place, witness):
    image = ensure(DockerSettings().image, ())
    words = [
        "docker",
        "run",
        "--label",
        witness.label,
        "--network",
        "none",
        "--volume",
        "/data",
        image,
        "true",
    ]
    subprocess.run(words, check=True, capture_output=True)
    assert len(witness.containers) == 1
    for container in witness.containers:
        subprocess.run(["docker", "rm", container], check=True, capture_output=True)
    found = Inventory.take(place, witness).by_kind
    assert {kind for kind in KINDS if found[kind]} == {"volume"}
    subprocess.run(["docker", "volume", "rm", found["volume"][0].key], check=True, capture_output=True)


@pytest.mark.docker
def test_networks_and_volumes_with_our_label_are_found(place, witness):
    before = Inventory.take(place, witness)
    name = f"hg-leaks-{os.getpid()}"
    subprocess.run(
        ["docker", "volume", "create", "--label", witness.label, name], check=True, capture_output=True
    )
    try:
        assert [(item.kind, item.key) for item in came(place, witness, before)] == [("volume", name)]
    finally:
        subprocess.run(["docker", "volume", "rm", name], check=True, capture_output=True)
    assert came(place, witness, before) == []
    made = witness.client.create_network(
        name, labels=dict([witness.label.split("=", 1)]), driver="bridge", internal=True
    )
    try:
        assert [(item.kind, item.what) for item in came(place, witness, before)] == [("network", name)]
    finally:
        witness.client.remove_network(made["Id"])


@pytest.mark.docker
def test_a_cable_drops_what_is_open_and_refuses_what_comes(place):
    with Cable(place.temporary / "s", Path(address().removeprefix("unix://"))) as cable:
        with dialled(cable.path) as first:
            assert ping(first) == b"HTTP/1.1 200 OK"
            cable.pull()
            assert cable.dropped == 1
            assert first.recv(1) == b""
        with pytest.raises(FileNotFoundError), dialled(cable.path):
            pass
        cable.plug()
        with dialled(cable.path) as second:
            assert ping(second) == b"HTTP/1.1 200 OK"


@contextlib.contextmanager
def dialled(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        yield connection


def ping(connection):
    connection.sendall(b"GET /_ping HTTP/1.1\r\nHost: engine\r\n\r\n")
    return connection.recv(4096).partition(b"\r\n")[0]
