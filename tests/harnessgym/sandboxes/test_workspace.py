"""Properties of workspace access: what is written is read back, and nothing leads outside."""

import contextlib
import os
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.workspace import Workspace

names = st.text(string.ascii_letters + "é .-_", min_size=1, max_size=12).filter(lambda name: name not in (".", ".."))
hostile = st.text(st.sampled_from("./a\0~"), max_size=12)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    made = Workspace(tmp_path_factory.mktemp("outer") / "inner", None, 1 << 20)
    made.make()
    return made


@given(
    folders=st.lists(names.map(lambda name: f"d{name}"), max_size=4),
    name=names.map(lambda name: f"f{name}"),
    data=st.binary(max_size=500),
)
def test_what_is_written_is_read_back(workspace, folders, name, data):
    path = "/".join([*folders, name])
    workspace.write(path, data)
    assert workspace.read(path) == data


@given(path=hostile)
def test_no_path_leads_outside(workspace, path):
    outer = workspace.root.parent
    before = {str(each) for each in outer.iterdir()}
    with contextlib.suppress(SandboxError):
        workspace.write(path, b"x")
    assert {str(each) for each in outer.iterdir()} == before
    with contextlib.suppress(SandboxError, FileNotFoundError):
        workspace.read(path)


def test_descriptors_do_not_leak(workspace, tmp_path):
    (tmp_path / "out").mkdir()
    os.symlink("/etc", workspace.root / "link")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        for path in ("link/passwd", "no/such", "link", "../x"):
            with pytest.raises((SandboxError, FileNotFoundError)):
                workspace.read(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_tool_is_named_with_its_remedy():
    from harnessgym.sandboxes.bubblewrap import bubblewrap_available

    problem = bubblewrap_available("no-such-bwrap")
    assert problem is not None
    assert "apt-get install bubblewrap" in problem
