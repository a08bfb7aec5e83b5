"""Which Python packages of the machine sandboxes do not see."""

import sys
from pathlib import Path

import py
import pytest

from harnessgym.sandbox import Equipment, Prewarm
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.system_packages import covered_folders, package_folders
from harnessgym.task import Limits


def install(site, name, *, requires=(), modules=()):
    """Lays down a distribution as pip does."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = "".join(f"Requires-Dist: {each}\n" for each in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")
    for module in modules or (name,):
        (site / module).mkdir()
        (site / module / "__init__.py").write_text("")
    files = [f"{module}/__init__.py" for module in modules or (name,)]
    (info / "RECORD").write_text("".join(f"{each},,\n" for each in [*files, f"{info.name}/METADATA"]))


@pytest.fixture
def system(tmp_path):
    """A small `/usr/lib`: packages for a Python, a program with libraries of its own, and other programs."""
    site = tmp_path / "lib/python3/dist-packages"
    install(site, "toolz")
    install(
        site,
        "pytest",
        requires=("pluggy>=1", "Iniconfig", 'attrs; extra == "dev"'),
        modules=("pytest", "_pytest"),
    )
    for name in ("pluggy", "iniconfig", "attrs"):
        install(site, name)
    # Debian's way: no list of files.
    (site / "setuptools-66.egg-info").mkdir()
    (site / "setuptools-66.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: setuptools\n")
    (site / "setuptools-66.egg-info" / "top_level.txt").write_text("setuptools\n_distutils_hack\n")
    (site / "setuptools").mkdir()
    (site / "_distutils_hack").mkdir()
    for number in range(30):
        package = tmp_path / f"lib/cloud-sdk/third_party/p{number}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        library = tmp_path / f"lib/python3.11/part{number}"
        library.mkdir(parents=True)
        (library / "__init__.py").write_text("")
    (tmp_path / "lib/git-core").mkdir()
    (tmp_path / "lib/llvm/python3/dist-packages/lit").mkdir(parents=True)
    (tmp_path / "lib/llvm/bin").mkdir()
    return tmp_path


def covered(system, *used, shown=()):
    folders = covered_folders(used, shown, trees=(str(system), str(system / "lib")))
    return {str(Path(each.path).relative_to(system)): each.kept for each in folders}


def test_packages_of_others_are_covered_and_tools_stay(system):
    assert covered(system) == {
        "lib/cloud-sdk": (),
        "lib/llvm/python3/dist-packages": (),
        "lib/python3/dist-packages": (
            "_distutils_hack",
            "_pytest",
            "iniconfig",
            "iniconfig-1.0.dist-info",
            "pluggy",
            "pluggy-1.0.dist-info",
            "pytest",
            "pytest-1.0.dist-info",
            "setuptools",
            "setuptools-66.egg-info",
        ),
    }


def test_what_the_interpreter_imports_from_stays_and_so_does_what_is_named(system):
    used = str(system / "lib/python3/dist-packages")
    assert set(covered(system, used)) == {"lib/cloud-sdk", "lib/llvm/python3/dist-packages"}
    assert set(covered(system, used, shown=(str(system / "lib/llvm"),))) == {"lib/cloud-sdk"}
    assert set(covered(system, used, shown=(str(system / "lib/cloud-sdk/bin"),))) == {
        "lib/llvm/python3/dist-packages"
    }


LISTING = """
import os, sys
for folder in sys.argv[1:]:
    print(sorted(os.listdir(folder)) if os.path.isdir(folder) else None)
"""


@pytest.mark.anyio
@pytest.mark.bubblewrap
@pytest.mark.parametrize("prewarm", [None, Prewarm("openai")], ids=["cold", "warm"])
async def test_a_sandbox_sees_of_covered_folders_only_the_tools(bubblewrap, prewarm):
    folders = covered_folders(sys.path)
    assert folders, "this machine has no packages of other programs: the test shows nothing"
    async with bubblewrap.open(Limits()) as sandbox:
        await sandbox.write("listing.py", LISTING.encode())
        result = await sandbox.exec(
            ["python", "listing.py", *(each.path for each in folders)], prewarm=prewarm
        )
        assert result.stdout.decode().splitlines() == [str(sorted(each.kept)) for each in folders]
        assert not (await sandbox.exec(["touch", f"{folders[0].path}/new"])).ok


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_settings_hide_more_and_show_again(tmp_path):
    shown = Path(package_folders()[0])
    readable = tmp_path / "readable"
    (readable / "toolz").mkdir(parents=True)
    (readable / "toolz" / "solution.py").write_text("solution")
    (readable / "six.py").write_text("solution")
    (readable / "other.py").write_text("other")
    hidden = (readable / "toolz", readable / "six.py", Path("/no/such/path"), Path("/usr/no/such/path"))
    settings = BubblewrapSettings(workspace_root=tmp_path / "w", hidden=hidden, shown=(shown,))
    async with (
        Bubblewrap(settings) as backend,
        backend.open(Limits(), Equipment(readable=(str(readable),))) as sandbox,
    ):
        look = f"ls {hidden[0]} | wc -l; wc -c < {hidden[1]}; ls {shown} | wc -l; cat {readable}/other.py"
        seen = (await sandbox.exec(["sh", "-c", look])).stdout.split()
        assert seen == [b"0", b"0", str(len(list(shown.glob("[!.]*")))).encode(), b"other"]


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_what_is_readable_below_a_covered_folder_is_there(bubblewrap):
    folder = next(each for each in covered_folders(sys.path) if set(Path(each.path).iterdir()))
    entry = next(
        path for path in sorted(Path(folder.path).iterdir()) if path.name not in folder.kept and path.is_dir()
    )
    async with bubblewrap.open(Limits(), Equipment(readable=(str(entry),))) as sandbox:
        seen = await sandbox.exec(["ls", "-A", folder.path])
        assert seen.stdout.decode().split() == sorted({*folder.kept, entry.name}, key=str)
        assert (await sandbox.exec(["ls", "-A", str(entry)])).stdout


@pytest.mark.anyio
@pytest.mark.bubblewrap
@pytest.mark.parametrize("prewarm", [None, Prewarm("openai")], ids=["cold", "warm"])
async def test_packages_of_this_environment_that_a_task_hides_are_not_there(bubblewrap, prewarm):
    package = Path(pytest.__file__).parent
    module = Path(py.__file__)
    assert module.parent == package.parent
    look = f"import os; print(len(os.listdir({str(package)!r})), os.path.getsize({str(module)!r}))"
    everything = f"{len(list(package.iterdir()))} {module.stat().st_size}"
    for hidden, seen in (((), everything), (("pytes?", "py.py"), "0 0")):
        async with bubblewrap.open(Limits(), Equipment(hidden=hidden)) as sandbox:
            await sandbox.write("look.py", look.encode())
            result = await sandbox.exec(["python", "look.py"], prewarm=prewarm)
            assert result.stdout.decode().strip() == seen, result.describe()
            assert not (await sandbox.exec(["touch", f"{package}/new"])).ok
