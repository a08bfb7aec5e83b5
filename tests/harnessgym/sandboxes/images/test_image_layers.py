"""Layers: run as root, found again, built once, and nothing that a build was lent is left in them."""

import os
import signal
import subprocess
import sys
import time
from itertools import chain

import pytest

from harnessgym.errors import ImageError
from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.images import build_lock
from harnessgym.sandboxes.images.builder import BUILDING
from harnessgym.sandboxes.images.layers import ensure

pytestmark = pytest.mark.docker

ASK = """
import sys
from harnessgym.sandboxes.images.layers import ensure
from harnessgym.sandbox import InstallStep
print(ensure(sys.argv[1], [InstallStep(("/bin/sh", "-c", text)) for text in sys.argv[2:]]))
"""


def sh(text, **env):
    return InstallStep(("/bin/sh", "-c", text), env)


def said(engine, image, text):
    """What a command in the image prints."""
    return engine.client.containers.run(
        image, ["/bin/sh", "-c", text], entrypoint="", network_mode="none", remove=True
    ).decode()


def everything(engine, image):
    """The whole image: its settings, history and files."""
    return b"".join(chain(engine.client.images.get(image).save(named=True)))


def commits(engine, image, began):
    """How many layers were committed above that image since then."""
    until = int(time.time()) + 1
    found = engine.client.events(since=int(began), until=until, filters={"event": "commit"}, decode=True)
    return sum(event["Actor"]["Attributes"].get("test") == image for event in found)


def building(engine, image):
    found = engine.client.api.containers(all=True, filters={"label": f"test={image}"})
    return [container for container in found if container["Names"][0].startswith(f"/{BUILDING}")]


def contents(containers):
    return {container["Names"][0].removeprefix(f"/{BUILDING}") for container in containers}


def test_steps_run_as_root_in_order_and_the_next_asker_finds_them(engine, make_image):
    image = make_image()
    steps = [sh('echo "$UIDS" > /first', UIDS="0"), sh("read word < /first; echo $word second > /second")]
    made = ensure(image, steps, engine=engine)
    assert said(engine, made, "read all < /second; echo $all") == "0 second\n"
    began = time.perf_counter()
    assert ensure(image, steps, engine=engine) == made
    assert (
        time.perf_counter() - began < 2.0
    )  # nothing ran: a container alone takes a fifth of a second, and there are two steps


def test_no_steps_leave_the_image_itself(engine, make_image):
    image = make_image()
    assert ensure(image, [], engine=engine) == image


def test_the_settings_of_the_image_stay(engine, make_image):
    image = make_image(
        'ENTRYPOINT ["/bin/sh", "-c"]',
        'CMD ["echo hello"]',
        "USER 1000:1000",
        "WORKDIR /here",
        "ENV KEPT=yes",
    )
    made = ensure(image, [sh(": > /made", LENT="no")], engine=engine)
    before, after = (engine.client.images.get(name).attrs["Config"] for name in (image, made))
    for setting in ("Entrypoint", "Cmd", "User", "WorkingDir", "Env", "Volumes", "ExposedPorts"):
        assert after.get(setting) == before.get(setting), setting


def test_a_step_is_lent_the_settings_of_this_machine_and_leaves_none(
    engine, make_image, tmp_path, monkeypatch
):
    wheels = tmp_path / "hidden-folder-of-wheels"
    wheels.mkdir()
    (wheels / "package").write_text("a wheel\n")
    secret = "user:hunter-secret@127.0.0.1"
    monkeypatch.setenv("PIP_INDEX_URL", f"https://{secret}/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("npm_config_registry", f"https://{secret}/npm")
    text = """
        case "$PIP_INDEX_URL" in https://user:*@127.0.0.1/simple) ;; *) exit 11 ;; esac
        read found < "$PIP_FIND_LINKS/package"; echo "$found" > /found
        read registry < "$npm_config_userconfig"; test "$registry" != "" || exit 12
        test -r "$SSL_CERT_FILE" || exit 13
        echo x > /dev/harnessgym/run && exit 14
        echo left behind > "$TMPDIR/scratch"
    """
    made = ensure(make_image(), [sh(text)], engine=engine)
    assert said(engine, made, "read all < /found; echo $all") == "a wheel\n"
    assert (
        said(engine, made, 'echo /dev/harnessgym* "$PIP_INDEX_URL$PIP_FIND_LINKS$SSL_CERT_FILE$TMPDIR"')
        == "/dev/harnessgym* \n"
    )
    image = everything(engine, made)
    assert b"a wheel" in image
    for gone in (b"hunter-secret", b"hidden-folder-of-wheels", b"/dev/harnessgym-files", b"left behind\n"):
        assert gone not in image, gone


def test_many_processes_that_want_one_image_build_it_once(engine, make_image):
    image, began = make_image(), time.time()
    command = [
        sys.executable,
        "-c",
        ASK,
        image,
        ": > /a; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done",
        ": > /b",
    ]
    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    answers = {process.communicate(timeout=120)[0] for process in asking}
    assert len(answers) == 1
    assert "harnessgym/layer:" in answers.pop()
    assert commits(engine, image, began) == 2


def test_equal_beginnings_are_built_once(engine, make_image):
    image, began = make_image(), time.time()
    first = ensure(image, [sh(": > /a"), sh(": > /b")], engine=engine)
    second = ensure(image, [sh(": > /a"), sh(": > /c")], engine=engine)
    assert first != second
    assert commits(engine, image, began) == 3


def test_a_step_that_fails_says_what_it_said_and_leaves_nothing(engine, make_image):
    image = make_image()
    with pytest.raises(ImageError, match=r"exited with 7.*\n.*no such package"):
        ensure(image, [sh("echo no such package >&2; exit 7")], engine=engine)
    assert building(engine, image) == []


def test_a_step_that_does_not_end_is_ended(engine, make_image):
    image = make_image()
    with pytest.raises(ImageError, match=r"did not end within 1 s.*\n.*began"):
        ensure(image, [sh("echo began; while :; do :; done")], timeout_s=1.0, engine=engine)
    assert building(engine, image) == []


def test_a_build_that_was_killed_is_taken_up_by_the_next(engine, make_image):
    image = make_image()
    text = 'while [ ! -f "$PIP_FIND_LINKS/go" ]; do :; done; : > /made'
    killed = subprocess.Popen([sys.executable, "-c", ASK, image, text])
    deadline = time.monotonic() + 60
    while not any(found["State"] == "running" for found in building(engine, image)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    left = building(engine, image)
    assert len(left) == 1
    assert contents(left) <= set(build_lock.abandoned())
    with pytest.raises(ImageError, match="did not end"):
        ensure(image, [sh(text)], timeout_s=0.5, engine=engine)
    assert building(engine, image) == []
    assert not contents(left) & set(build_lock.abandoned())


def test_an_image_that_is_not_there_is_named(engine):
    with pytest.raises(ImageError, match=r"no image 'harnessgym-test/nowhere'.*harnessgym images list"):
        ensure("harnessgym-test/nowhere", [sh(":")], engine=engine)
