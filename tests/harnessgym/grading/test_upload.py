"""Exported files in a real sandbox again: contents, links, empty folders, and nothing outside of it."""

import os
from contextlib import asynccontextmanager

import pytest

from harnessgym.errors import SandboxError
from harnessgym.grading.upload import holding, lay
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend(tmp_path, anyio_backend):
    async with ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as backend:
        yield backend


@pytest.fixture
def exported(tmp_path):
    folder = tmp_path / "exported"
    folder.mkdir()
    return folder


async def shell(sandbox, script):
    result = await sandbox.exec(["sh", "-c", script], timeout_s=20)
    assert result.ok, result.describe()
    return result.stdout.decode()


async def test_files_and_folders_are_laid_byte_for_byte(backend, exported):
    (exported / "deep/er").mkdir(parents=True)
    (exported / "deep/er/data.bin").write_bytes(bytes(range(256)))
    (exported / "a b.txt").write_text("1\r\n")
    async with backend.open(Limits()) as sandbox:
        await lay(exported, sandbox)
        assert await sandbox.read("deep/er/data.bin") == bytes(range(256))
        assert await sandbox.read("a b.txt") == b"1\r\n"


async def test_executable_files_stay_executable(backend, exported):
    (exported / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (exported / "run.sh").chmod(0o755)
    async with backend.open(Limits()) as sandbox:
        await lay(exported, sandbox)
        assert await shell(sandbox, "./run.sh") == "ran\n"


async def test_links_are_laid_as_links(backend, exported):
    (exported / "real").write_text("42")
    (exported / "deep").mkdir()
    (exported / "deep/link").symlink_to("../real")
    (exported / "dangling").symlink_to("nowhere")
    async with backend.open(Limits()) as sandbox:
        await lay(exported, sandbox)
        assert await shell(sandbox, "readlink deep/link dangling; cat deep/link") == "../real\nnowhere\n42"


async def test_empty_folders_are_laid(backend, exported):
    (exported / "empty").mkdir()
    (exported / "outer/inner").mkdir(parents=True)
    async with backend.open(Limits()) as sandbox:
        await lay(exported, sandbox)
        assert (
            await shell(sandbox, "find . -mindepth 1 -type d | sort") == "./empty\n./outer\n./outer/inner\n"
        )


async def test_a_link_that_would_lead_files_out_of_the_workspace_does_not(backend, exported, tmp_path):
    """The folder of the export has a link where the sandbox then gets a file below the same name."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (exported / "folder").symlink_to(outside)
    (exported / "file").write_text("1")
    async with backend.open(Limits()) as sandbox:
        await lay(exported, sandbox)
        assert await shell(sandbox, "readlink folder; cat file") == f"{outside}\n1"
    assert list(outside.iterdir()) == []


async def test_the_export_is_left_as_it_was(backend, exported):
    (exported / "real").write_text("42")
    (exported / "link").symlink_to("real")
    async with backend.open(Limits()) as sandbox:
        await lay(exported, sandbox)
        await shell(sandbox, "echo changed > real")
    assert sorted(os.listdir(exported)) == ["link", "real"]
    assert (exported / "real").read_text() == "42"
    assert [path.name for path in exported.parent.iterdir() if path.name.startswith("laying-")] == []


async def test_an_empty_export_leaves_an_empty_workspace(backend, exported):
    async with backend.open(Limits()) as sandbox:
        await lay(exported, sandbox)
        assert await shell(sandbox, "ls -A") == ""


async def test_names_that_are_no_utf_8_are_kept(backend, exported):
    name = b"\xff\xfe"
    os.symlink(b"target", os.path.join(os.fsencode(exported), name))
    async with backend.open(Limits()) as sandbox:
        await lay(exported, sandbox)
        result = await sandbox.exec(["sh", "-c", "ls -A"], timeout_s=20)
    assert result.stdout == name + b"\n"


async def test_a_sandbox_without_tar_is_named(backend, exported):
    (exported / "link").symlink_to("nowhere")
    async with backend.open(Limits()) as sandbox:
        bare = Without(sandbox)
        with pytest.raises(SandboxError, match=r"Links and empty folders could not be made.*needs tar"):
            await lay(exported, bare)


class Without:
    """A sandbox whose `PATH` holds no program."""

    def __init__(self, sandbox):
        self._sandbox = sandbox

    async def upload(self, source, name):
        await self._sandbox.upload(source, name)

    async def exec(self, argv, **options):
        return await self._sandbox.exec(["/bin/sh", "-c", 'PATH=/nonexistent "$@"', "sh", *argv], **options)


async def test_an_opener_holds_the_files_of_a_folder(backend, exported):
    (exported / "a").write_text("1")
    opener = holding(exported, lambda: backend.open(Limits()))
    async with opener() as first:
        await shell(first, "echo 2 > a")
    async with opener() as second:
        assert await second.read("a") == b"1"


async def test_a_sandbox_that_cannot_be_removed_is_a_remark_and_no_error(backend, exported):
    remarks = []

    @asynccontextmanager
    async def stuck():
        async with backend.open(Limits()) as sandbox:
            yield sandbox
        raise SandboxError("The engine is gone.")

    async with holding(exported, stuck, left_behind=remarks.append)() as sandbox:
        assert await shell(sandbox, "echo graded") == "graded\n"
    assert remarks == ["A sandbox for grading could not be removed: The engine is gone."]


async def test_an_error_in_the_sandbox_is_not_hidden_by_its_removal(backend, exported):
    with pytest.raises(SandboxError, match="The measurement failed"):
        async with holding(exported, lambda: backend.open(Limits()), left_behind=pytest.fail)():
            raise SandboxError("The measurement failed.")
