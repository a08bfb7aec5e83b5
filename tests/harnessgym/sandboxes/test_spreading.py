"""The mark that spreads folders over a disk: set where the file system knows it, and never an error."""

import subprocess

import pytest

from harnessgym.sandboxes.local import spread
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings


def flags(folder):
    done = subprocess.run(["lsattr", "-d", str(folder)], capture_output=True, text=True, check=False)
    return done.stdout.split(" ")[0] if done.returncode == 0 else None


def test_it_is_set_once_and_again_and_whatever_the_file_system(tmp_path, small_disk):
    for folder in (tmp_path, small_disk):
        spread(folder)
        spread(folder)
        (folder / "made").mkdir()


@pytest.mark.anyio
async def test_a_nodes_folder_has_it(tmp_path):
    if flags(tmp_path) is None:
        pytest.skip("no lsattr here, or a file system without attributes")
    async with ProcessBackend(ProcessSettings(workspace_root=tmp_path / "root")) as backend:
        assert "T" in flags(backend.root)
