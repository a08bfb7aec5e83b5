"""Tasks that live in an image: from what the image has at the task's home to what is seen where it is
graded.
"""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from harnessgym.errors import CapabilityError, TaskError
from harnessgym.grading.grade import judge
from harnessgym.outcome.failure import RolloutFailed
from harnessgym.provisioning import equipment_of
from harnessgym.sandbox import Capability, needs, require
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.connection import EngineConnection
from harnessgym.task import Limits, Setup, Task
from harnessgym.task_setup.workspace_setup import furnish
from tests.harnessgym.sandboxes.images.contexts import contexts

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
LOOKING = "tests.harnessgym.rollout.looking:looking"
APP = (
    "WORKDIR /app",
    (
        "RUN echo kept > kept && mkdir folder && echo private > folder/private && chmod 0600 folder/private "
        "&& "
        "chmod 0700 folder"
    ),
    (
        "RUN ln -s /usr/bin/env outward && ln -s kept inward && ln -s /app/kept absolute && mkdir empty && : "
        "> "
        "taken"
    ),
)


@pytest.fixture(scope="module")
def make_context(tmp_path_factory):
    with EngineConnection() as engine, contexts(engine, tmp_path_factory.mktemp("contexts")) as make:
        yield make


@pytest.fixture(scope="module")
def app(make_context):
    return make_context(*APP)


@pytest.fixture
async def docker(tmp_path, anyio_backend):
    async with Docker(DockerSettings(workspace_root=tmp_path / "w", spares=0)) as opened:
        yield opened


@pytest.fixture
def make_task(app):
    def make(**changes):
        base = {
            "id": "t",
            "instruction": "Do.",
            "home": "@workdir",
            "grader": LOOKING,
            "metadata": {"look": "true"},
        }
        return Task(**{**base, "image": app, **changes})

    return make


@asynccontextmanager
async def furnished(docker, task):
    async with docker.open(task.limits, equipment_of(task)) as sandbox:
        await furnish(task, sandbox)
        yield sandbox


async def judged(docker, task, script="true"):
    """Does what a script says in the agent's place; the grade."""
    async with furnished(docker, task) as sandbox:
        done = await sandbox.exec(["sh", "-ec", script])
        assert done.ok, done.stderr.decode()
        return await judge(task, sandbox, lambda: docker.open(task.limits, equipment_of(task, grades=True)))


async def said(sandbox, script):
    return (await sandbox.exec(["sh", "-c", script])).stdout.decode()


async def test_the_agent_works_on_a_copy_of_what_the_image_has(docker, make_task):
    setup = Setup((("sh", "-c", "cat kept given > made; rm taken"),))
    async with furnished(
        docker, make_task(files={"given": "laid", "kept": "replaced "}, setup=setup)
    ) as sandbox:
        assert (
            await said(sandbox, "cat made; pwd; cd /app && pwd -P") == "replaced laid/workspace\n/workspace\n"
        )
        listed = "absolute\nempty\nfolder\ngiven\ninward\nkept\nmade\noutward\n"
        assert (
            await said(sandbox, "ls /app; cat folder/private; readlink outward")
            == f"{listed}private\n/usr/bin/env\n"
        )
        assert (
            await said(sandbox, "find . ! -user agent; ls /.harnessgym /.harnessgym/home 2> /dev/null") == ""
        )
        assert (
            await sandbox.exec(["sh", "-ec", "echo mine > folder/private; echo x > /app/new; chmod 755 ."])
        ).ok
        assert await sandbox.read("new") == b"x\n"


async def test_what_was_taken_from_the_copy_is_gone_for_the_agent_and_its_grader(docker, make_task):
    task = make_task(
        setup=Setup((("rm", "taken"),)), metadata={"look": "ls -d taken /app/taken; ls -A /.harnessgym"}
    )
    grade = await judged(docker, task)
    assert grade.rewards == {"reward": 0.0}
    assert "No such file" in grade.evidence["said"]
    assert "Permission denied" in grade.evidence["said"]


async def test_where_it_is_graded_the_home_is_what_the_agent_left(docker, make_task):
    look = "cd /app && pwd -P && cat kept folder/private && ls && readlink outward absolute inward && ls -A empty"
    grade = await judged(
        docker, make_task(metadata={"look": look}), "echo new > kept; rm taken; ln -s /etc/passwd stolen"
    )
    listed = "absolute\nempty\nfolder\ninward\nkept\noutward\n"
    assert grade.evidence["said"] == f"/workspace\nnew\nprivate\n{listed}/usr/bin/env\n/app/kept\nkept\n"
    assert grade.evidence["left_out"] == ["absolute", "outward", "stolen"]
    assert "outward" not in grade.evidence["exported"]


async def test_links_of_the_image_come_back_only_where_the_agent_left_something(docker, make_task):
    task = make_task(metadata={"look": "readlink sub/link outward; ls -d outward sub/link"})
    assert (await judged(docker, task, "rm outward; ln -s /etc/passwd absolute2")).evidence["said"].count(
        "No such file"
    ) == 2
    swapped = await judged(docker, task, "rm outward; ln -s /etc/passwd outward")
    assert swapped.evidence["said"].startswith("/usr/bin/env\n")


async def test_folders_and_what_is_collected_reach_the_grader(docker, make_task):
    look = (
        "cat .outside/logs/artifacts/report; ls -A /logs /tests; echo mine > /logs/new; ls -d .outside/logs/*"
    )
    task = make_task(
        folders=("/logs", "/tests"),
        collect=("/logs/artifacts", "/tests/none"),
        artifacts=("kept",),
        metadata={"look": look},
    )
    grade = await judged(
        docker,
        task,
        "mkdir -p /logs/artifacts .outside/logs/artifacts; echo 1 > /logs/artifacts/report; : > /logs/other",
    )
    assert grade.evidence["said"] == "1\n/logs:\n\n/tests:\n.outside/logs/artifacts\n"
    assert grade.evidence["exported"] == [
        ".outside", ".outside/logs", ".outside/logs/artifacts", ".outside/logs/artifacts/report", "kept",
    ]  # fmt: skip


async def test_too_much_beside_the_workspace_is_tampering(docker, make_task):
    task = make_task(folders=("/logs",), collect=("/logs/a",), limits=Limits(disk_mb=16))
    grade = await judged(
        docker, task, "mkdir /logs/a; head -c 8000000 /dev/zero > /logs/a/1; head -c 8000000 /dev/zero > 2"
    )
    assert grade.tampered is not None
    assert "/logs/a" in grade.tampered


async def test_the_roots_home_can_be_the_tasks(docker, make_context, make_task):
    task = make_task(
        image=make_context("WORKDIR /root", "RUN : > here"), metadata={"look": "cd /root && ls here"}
    )
    async with furnished(docker, task) as sandbox:
        root = await sandbox.exec(["sh", "-c", "echo $HOME; ls /root/here"], user="root")
        assert root.stdout == b"/\n/root/here\n"
    assert (await judged(docker, task)).rewards == {"reward": 1.0}


async def test_a_home_that_does_not_fit_says_so(docker, make_context, make_task):
    image = make_context("WORKDIR /app", "RUN head -c 12000000 /dev/zero > big")
    with pytest.raises(TaskError, match=r"'t' has at @workdir .*8 MB of disk.*No space left"):
        async with furnished(docker, make_task(image=image, limits=Limits(disk_mb=8))):
            pass


async def test_what_cannot_be_is_a_task_error(docker, make_task):
    broken = {
        "no image": {"home": "/app", "image": None},
        "lie in the workspace": {"home": "/workspace/app"},
        "cannot be `/`": {"home": "/"},
        "beside its workspace": {"folders": ("/etc",)},
        "/var/log/x is in none of them": {"collect": ("/var/log/x",)},
        "lies in the other": {"folders": ("/app/out",)},
    }
    for why, changes in broken.items():
        with pytest.raises(TaskError, match=why):
            async with furnished(docker, make_task(**changes)):
                pass


async def test_a_setup_that_fails_names_its_task(docker, make_task):
    with pytest.raises(RolloutFailed, match=r"`false` of task 't' failed: exit status 1"):
        async with furnished(docker, make_task(setup=Setup((("false",),)))):
            pass


async def test_such_a_task_needs_containers(make_task):
    task = replace(make_task(), image=None)
    assert needs(task) == {Capability.IMAGE, Capability.ROOT}
    assert needs(replace(task, home="", folders=("/logs",))) == {Capability.IMAGE}
    with pytest.raises(CapabilityError):
        require(frozenset({Capability.NETWORK}), needs(task))
