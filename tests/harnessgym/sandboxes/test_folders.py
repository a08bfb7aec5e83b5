"""Folders beside the workspace: writable, bounded, empty at first, and taken out as data whatever the
agent made of them.
"""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import SandboxError, TaskError
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.folders import check_apart, check_collected, checked_folders, folder_of, outermost
from harnessgym.task import OUTSIDE, Limits

pytestmark = pytest.mark.anyio
BACKENDS = ("process", "bubblewrap")
docker_only = pytest.mark.docker
ROOM = {"max_bytes": 50 << 20, "max_files": 10_000}
LOGS = Equipment(folders=("/logs",))
paths = st.lists(st.sampled_from(["logs", "out", "a", "b"]), min_size=1, max_size=4).map(
    lambda parts: f"/{'/'.join(parts)}"
)


async def collected(docker, tmp_path, script, *paths, equipment=LOGS, **bounds):
    """Runs a shell script and takes out what it left, with these paths."""
    async with docker.open(Limits(), equipment) as sandbox:
        done = await sandbox.exec(["sh", "-ec", script])
        assert done.ok, done.stderr.decode()
        await sandbox.kill_all()
        return await sandbox.export(tmp_path / "out", collect=paths, **{**ROOM, **bounds})


def texts(folder):
    """Every file below a folder, by its path there; a link as where it leads."""
    return {
        str(path.relative_to(folder)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@docker_only
async def test_they_are_empty_writable_bounded_and_belong_to_the_agent(docker):
    folders = ("/logs", "/logs/inner/deep", "/opt/more", "/etc/skel")
    async with docker.open(Limits(disk_mb=8), Equipment(folders=folders)) as sandbox:
        look = await sandbox.exec(
            ["sh", "-ec", 'for each; do stat -c "%n %u %a" $each; ls -A $each; done', "sh", *folders]
        )
        assert look.stdout.decode().split("\n") == [
            "/logs 1000 755", "inner", "/logs/inner/deep 1000 755", "/opt/more 1000 755", "/etc/skel 1000 755", "",
        ]  # fmt: skip
        for folder in folders:
            fill = await sandbox.exec(
                ["sh", "-c", f"head -c 9000000 /dev/zero > {folder}/big; stat -c %s {folder}/big"]
            )
            assert b"No space left" in fill.stderr
            assert int(fill.stdout) <= 8 << 20
        assert not (await sandbox.exec(["touch", "/opt/other"])).ok


@docker_only
async def test_files_below_them_are_taken_out_beside_the_workspace(docker, tmp_path):
    script = """
        echo own > mine; cd /logs; mkdir -p artifacts/deep other; echo 1 > artifacts/one; echo 2 > artifacts/deep/two
        chmod 755 artifacts/one; echo 3 > other/three; echo 4 > four; chmod 000 artifacts/deep four
    """
    wanted = ("/logs/artifacts", "/logs/four", "/logs/nothing/here", "/logs/artifacts/one")
    export = await collected(docker, tmp_path, script, *wanted)
    assert texts(tmp_path / "out") == {
        "mine": "own\n",
        ".outside/logs/artifacts/one": "1\n",
        ".outside/logs/artifacts/deep/two": "2\n",
        ".outside/logs/four": "4\n",
    }
    assert (export.files, export.size, export.left_out, export.overflow) == (4, 10, (), "")
    assert (tmp_path / "out/.outside/logs/artifacts/one").stat().st_mode & 0o777 == 0o755


@docker_only
async def test_a_whole_folder_can_be_taken_out(docker, tmp_path):
    export = await collected(docker, tmp_path, "mkdir /logs/a; echo 1 > /logs/a/b", "/logs/")
    assert texts(tmp_path / "out") == {".outside/logs/a/b": "1\n"}
    assert export.left_out == ()


@docker_only
async def test_links_and_special_files_are_left_out_and_named(docker, tmp_path):
    script = """
        echo secret > kept; mkdir /logs/a /logs/b; ln -s /etc /logs/folder; ln -s /etc/passwd /logs/file; mkfifo /logs/pipe
        ln -s /workspace /logs/way; ln -s b/real /logs/b/inside; echo real > /logs/b/real; ln -s /etc/passwd /logs/b/outside
        mkfifo /logs/b/pipe; ln -s .. /logs/b/up; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/logs/b/sock")'
    """
    wanted = (
        "/logs/folder",
        "/logs/file",
        "/logs/pipe",
        "/logs/way/kept",
        "/logs/b",
        "/logs/b/inside",
        "/logs/folder/passwd",
    )
    export = await collected(docker, tmp_path, script, *wanted)
    assert texts(tmp_path / "out") == {"kept": "secret\n", ".outside/logs/b/real": "real\n"}
    assert set(export.left_out) == {
        f".outside/logs/{name}"
        for name in (
            "b/inside",
            "b/outside",
            "b/pipe",
            "b/sock",
            "b/up",
            "file",
            "folder",
            "pipe",
            "way/kept",
        )
    }


@docker_only
async def test_what_the_workspace_has_of_that_name_is_left_out(docker, tmp_path):
    scripts = {
        "folder": (
            "mkdir -p .outside/logs/a sub/.outside; echo forged > .outside/logs/a/b; echo kept > "
            "sub/.outside/c"
        ),
        "link": "mkdir forged; ln -s forged .outside; ln -s .outside/logs through",
        "file": "echo forged > .outside",
    }
    for name, script in scripts.items():
        place = tmp_path / name
        place.mkdir()
        export = await collected(docker, place, script, "/logs/a")
        assert export.left_out == (OUTSIDE,), name
        assert not (place / "out" / OUTSIDE).exists()
        place.joinpath("again").mkdir()
        export = await collected(
            docker, place / "again", f"{script}; mkdir /logs/a; echo true > /logs/a/b", "/logs/a"
        )
        assert export.left_out == (OUTSIDE,), name
        assert texts(place / "again/out" / OUTSIDE) == {"logs/a/b": "true\n"}
    assert (tmp_path / "folder/out/sub/.outside/c").read_text() == "kept\n"


@docker_only
async def test_without_anything_to_collect_the_name_is_like_any_other(docker, tmp_path):
    export = await collected(docker, tmp_path, "mkdir .outside; echo own > .outside/file; echo 1 > /logs/a")
    assert texts(tmp_path / "out") == {".outside/file": "own\n"}
    assert export.left_out == ()


@docker_only
@pytest.mark.parametrize(
    ("script", "bounds"),
    [
        ("for i in 1 2 3; do truncate -s 20M /logs/a/$i; done", {}),
        ("head -c 3000000 /dev/zero > /logs/a/big", {"max_bytes": 2_000_000}),
        (
            "head -c 1500000 /dev/zero > big; head -c 1500000 /dev/zero > /logs/a/big",
            {"max_bytes": 2_000_000},
        ),
        (
            "for i in $(seq 30); do : > /logs/a/$i; done; for i in $(seq 30); do : > $i; done",
            {"max_files": 50},
        ),
        ("cd /logs/a; for i in $(seq 400); do mkdir d; cd d; done", {}),
        ("head -c 3000000 /dev/zero > big", {"max_bytes": 2_000_000}),
    ],
)
async def test_both_together_are_bounded(docker, tmp_path, script, bounds):
    export = await collected(docker, tmp_path, f"mkdir /logs/a; {script}", "/logs/a", **bounds)
    assert "more than" in export.overflow or "larger than" in export.overflow


@docker_only
async def test_a_folder_whose_parent_was_moved_away_is_still_the_one(docker, tmp_path):
    equipment = Equipment(folders=("/logs", "/logs/inner/deep"))
    script = """
        echo true > /logs/inner/deep/file; mkdir -p forged/deep; echo forged > forged/deep/file
        mv /logs/inner /logs/moved && ln -s /workspace/forged /logs/inner
    """
    export = await collected(docker, tmp_path, script, "/logs/inner/deep/file", equipment=equipment)
    assert texts(tmp_path / "out" / OUTSIDE) == {"logs/inner/deep/file": "true\n"}
    assert export.left_out == ()


@docker_only
async def test_what_lies_in_no_folder_cannot_be_collected(docker, tmp_path):
    with pytest.raises(SandboxError, match=r"'/etc/passwd' cannot be collected: .*\(/logs\)"):
        await collected(docker, tmp_path, "true", "/etc/passwd")
    with pytest.raises(TaskError, match=r"without `\.\.`"):
        await collected(docker, tmp_path, "true", "/logs/../etc/passwd")


@docker_only
async def test_spares_are_handed_out_only_for_the_same_folders(stub, tmp_path):
    from tests.harnessgym.sandboxes.conftest import make_docker, python_image

    python_image()
    async with make_docker(stub, tmp_path, spares=2) as docker:
        for folders in (("/logs",), (), ("/logs", "/more"), ("/logs",)):
            async with docker.open(Limits(), Equipment(folders=folders)) as sandbox:
                there = await sandbox.exec(["sh", "-c", "ls -d /logs /more 2> /dev/null"])
                assert there.stdout.decode().split() == list(folders)
                assert (
                    not there.stdout
                    or (await sandbox.exec(["touch", *(f"{each}/new" for each in folders)])).ok
                )


async def test_a_sandbox_without_containers_says_that_it_has_none(backend, tmp_path):
    async with backend.open(Limits()) as sandbox:
        with pytest.raises(SandboxError, match="no folders beside its workspace"):
            await sandbox.export(tmp_path / "out", collect=["/logs/a"], **ROOM)


@pytest.mark.parametrize(
    "folder", ["", "logs", "/", "/etc", "/usr/", "/tmp", "/tmp/a", "/workspace/a", "/workspace", "/home", "/home/agent", "/dev",
               "/proc/a", "/a/../etc", "//a", "/a:b", "/a,b"]
)  # fmt: skip
def test_what_cannot_be_a_folder_is_refused(folder):
    with pytest.raises(TaskError, match=r"beside"):
        checked_folders([folder])


def test_there_are_not_too_many():
    assert len(checked_folders([f"/a{number}" for number in range(32)])) == 32
    with pytest.raises(TaskError, match="32 folders"):
        checked_folders([f"/a{number}" for number in range(33)])


def test_they_are_named_once_without_slashes():
    assert checked_folders(["/tests/", "/logs", "/tests", "/opt/x/."]) == ("/logs", "/opt/x", "/tests")


def test_a_folder_and_a_home_lie_apart():
    check_apart(("/logs",), "/app")
    check_apart(("/application",), "/app")
    check_apart(("/logs",), "")
    for home, folder in (("/app", "/app/out"), ("/srv/app", "/srv"), ("/app", "/app")):
        with pytest.raises(TaskError, match="lies in the other"):
            check_apart((folder,), home)


def test_what_is_collected_lies_in_a_folder():
    check_collected(["/logs", "/logs/a"], ["/logs"])
    with pytest.raises(TaskError, match="/logsish is in none of them"):
        check_collected(["/logsish"], ["/logs"])


@given(st.lists(paths, max_size=6))
def test_outermost_paths_cover_all_and_none_another(wanted):
    found = outermost(wanted)
    assert all(any(PurePosixPath(path).is_relative_to(each) for each in found) for path in wanted)
    assert not any(
        one != other and PurePosixPath(one).is_relative_to(other) for one in found for other in found
    )


@given(paths, st.lists(paths, max_size=5))
def test_a_path_lies_in_the_innermost_folder(path, folders):
    found = folder_of(path, folders)
    around = [each for each in folders if PurePosixPath(path).is_relative_to(each)]
    assert (found is None) == (not around)
    assert found is None or all(PurePosixPath(found).is_relative_to(each) for each in around)
