"""Images of every kind as sandboxes: empty ones, ones that swallow commands or want volumes, ones that are
not there.
"""

import io
import shutil
import subprocess
import tarfile

import pytest

from harnessgym.errors import SandboxError
from harnessgym.sandbox import Equipment, InstallStep, Prewarm
from harnessgym.sandboxes.engine import connect
from harnessgym.task import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
int main(int count, char **arguments) {
    FILE *file = fopen("made", "w");
    fprintf(file, "by %d with %s", getuid(), count > 1 ? arguments[1] : "nothing");
    return fclose(file) || puts("out") < 0;
}
"""
EMPTY = io.BytesIO()
with tarfile.open(fileobj=EMPTY, mode="w") as _archive:
    _archive.addfile(tarfile.TarInfo("nothing"))
AWKWARD = [
    'ENTRYPOINT ["/bin/false"]',
    'CMD ["--swallow"]',
    "USER 65534",
    "VOLUME /data /srv/more",
    "WORKDIR /nowhere/at/all",
    "ENV FROM_IMAGE=yes",
    "ENV LD_PRELOAD=/nowhere.so",
    "HEALTHCHECK --interval=1s CMD touch /tmp/healthy",
]


@pytest.fixture
def engine():
    client = connect()
    yield client
    client.close()


@pytest.fixture
def made(engine):
    """Names images that are removed after the test."""
    names = []

    def name(suffix):
        names.append(f"harnessgym-test/{suffix}:latest")
        return names[-1]

    yield name
    for each in names:
        engine.remove_image(each, force=True)


@pytest.fixture
def scratch(engine, made, tmp_path):
    """An image that holds one static program and nothing else."""
    compiler = shutil.which("cc")
    (tmp_path / "program.c").write_text(PROGRAM)
    subprocess.run([compiler, "-static", "-o", tmp_path / "program", tmp_path / "program.c"], check=True)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(tmp_path / "program", "program")
    name = made("scratch")
    engine.import_image_from_data(data.getvalue(), repository=name.partition(":")[0], tag="latest")
    return name


@pytest.fixture
def awkward(engine, made, docker):
    """The usual image, with settings that come in the way of whoever just starts it."""
    name = made("awkward")
    container = engine.create_container(image=docker.options.image, command=["true"])["Id"]
    try:
        engine.commit(container, repository=name.partition(":")[0], tag="latest", changes=AWKWARD)
    finally:
        engine.remove_container(container)
    return name


async def test_an_empty_image_runs_a_static_program(docker, scratch):
    async with docker.open(Limits(), Equipment(image=scratch)) as sandbox:
        result = await sandbox.exec(["/program", "argument"])
        assert (result.stdout, result.exit_code) == (b"out\n", 0), result.stderr
        assert await sandbox.read("made") == b"by 1000 with argument"
        assert (await sandbox.exec(["sh"])).exit_code == 127
        assert (
            await sandbox.exec(["python", "p.py"], prewarm=Prewarm())
        ).stderr == b"python: No such file or directory\n"
        assert (await sandbox.exec(["/program"], timeout_s=60)).ok
        await sandbox.kill_all()
        assert (await sandbox.stats()).processes == 0


async def test_an_awkward_image_is_a_sandbox_like_any_other(docker, awkward, engine):
    async with docker.open(Limits(), Equipment(image=awkward)) as sandbox:
        result = await sandbox.exec(["sh", "-c", "id -u; pwd; echo $FROM_IMAGE"])
        assert result.stdout == b"1000\n/workspace\nyes\n"
        fill = await sandbox.exec(
            ["sh", "-c", "head -c 100000000 /dev/zero > /data/big; stat -c %s /data/big"]
        )
        assert b"No space left" in fill.stderr
        assert int(fill.stdout) <= 64 << 20
        inspected = engine.inspect_container(sandbox.id)
        assert [mount for mount in inspected["Mounts"] if mount["Type"] == "volume"] == []


async def test_an_image_that_is_not_there_is_named(docker):
    for _ in range(2):
        with pytest.raises(
            SandboxError,
            match=r"'no-such/image:1' is not on the Docker engine .*`docker pull no-such/image:1`",
        ):
            async with docker.open(Limits(), Equipment(image="no-such/image:1")):
                pass


async def test_an_image_that_was_replaced_is_looked_up_again(docker, scratch, engine):
    async with docker.open(Limits(), Equipment(image=scratch)) as sandbox:
        first = engine.inspect_container(sandbox.id)["Image"]
    engine.remove_image(scratch, force=True)
    name, _, tag = scratch.partition(":")
    engine.import_image_from_data(EMPTY.getvalue(), repository=name, tag=tag)
    with pytest.raises(SandboxError, match=f"{first} was removed"):
        async with docker.open(Limits(), Equipment(image=scratch)):
            pass
    async with docker.open(Limits(), Equipment(image=scratch)) as sandbox:
        assert engine.inspect_container(sandbox.id)["Image"] != first
        assert (await sandbox.exec(["/program"])).exit_code == 127


async def test_only_what_the_equipment_names_can_be_made_readable(docker, tmp_path):
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "file").write_text("inside")
    (tmp_path / "other").write_text("outside")
    named, other = str(tmp_path / "named"), str(tmp_path / "other")
    async with docker.open(Limits(), Equipment(readable=(named,))) as sandbox:
        assert (await sandbox.exec(["cat", f"{named}/file"], readable=[f"{named}/file"])).stdout == b"inside"
        assert not (await sandbox.exec(["sh", "-c", f"echo x > {named}/file"], user="root")).ok
        assert not (await sandbox.exec(["cat", other])).ok
        with pytest.raises(SandboxError, match="Equipment"):
            await sandbox.exec(["cat", other], readable=[other])
    with pytest.raises(SandboxError, match="not on this machine"):
        async with docker.open(Limits(), Equipment(readable=(f"{named}/nothing",))):
            pass


async def test_a_user_is_the_harness_or_root(docker):
    async with docker.open(Limits()) as sandbox:
        with pytest.raises(SandboxError, match="'nobody'"):
            await sandbox.exec(["id"], user="nobody")


async def test_what_the_equipment_installs_is_there(docker, engine):
    steps = (InstallStep(("sh", "-c", "echo $WORD > /installed"), {"WORD": "by a step"}),)
    async with docker.open(Limits(), Equipment(install=steps)) as sandbox:
        assert (await sandbox.exec(["cat", "/installed"])).stdout == b"by a step\n"
        image = engine.inspect_container(sandbox.id)["Image"]
    engine.remove_image(image, force=True)
