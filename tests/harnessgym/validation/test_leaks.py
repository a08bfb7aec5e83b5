"""Solutions and tests that lie where an agent can read them, in sandboxes that show part of this machine."""

from dataclasses import replace
from pathlib import Path

import iniconfig
import pytest

from harnessgym.sandbox import PLAIN, InstallStep
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure
from harnessgym.task import Solution, Task
from harnessgym.validation.baseline import Baseline
from harnessgym.validation.leaks import Leak, leaks
from harnessgym.validation.task_check import CheckPlan, TaskSetCheck

pytestmark = pytest.mark.anyio
LINES = [f"    value_{number} = compute_the_value(number={number})" for number in range(20)]
BROKEN = "\n".join(["def work():", *LINES[:-1], "    return None"])
GOLD = "\n".join(["def work():", *LINES, "    return value_19", ""])


def task(name="t", **fields):
    files = {"kind": "files", "rules": [{"path": "pkg/work.py", "content": GOLD}]}
    metadata = {"tests": (files,), "score": "weighted", "test_files": fields.pop("test_files", {})}
    solution = fields.pop("solution", Solution({"pkg/work.py": GOLD}))
    return Task(
        name,
        "Do it.",
        files={"pkg/work.py": BROKEN},
        grader="checks",
        solution=solution,
        metadata=metadata,
        **fields,
    )


class Showing(Bubblewrap):
    """A backend whose sandboxes also show a folder of this machine."""

    def __init__(self, settings, folder):
        super().__init__(settings)
        self.folder = folder

    def open(self, limits, equipment=PLAIN):
        return super().open(limits, replace(equipment, readable=(str(self.folder),)))


@pytest.fixture
def shown(tmp_path):
    (tmp_path / "shown").mkdir()
    return tmp_path / "shown"


@pytest.fixture
def backend(shown, tmp_path):
    """To be opened."""
    return Showing(BubblewrapSettings(workspace_root=tmp_path / "w"), shown)


@pytest.mark.bubblewrap
async def test_another_version_of_what_a_task_is_about_leaks_and_a_clean_machine_does_not(backend, shown):
    async with backend:
        assert await leaks(backend, [task()]) == {}
        (shown / "old").mkdir()
        (shown / "old" / "work.py").write_text("\n".join(["def work():  # an older one", *LINES[4:]]))
        (shown / "chance.py").write_text("\n".join(LINES[:5]))
        (shown / "compiled.py").write_bytes(b"\0" + GOLD.encode())
        (shown / "data.bin").write_text(GOLD)
        assert await leaks(backend, [task(), task("other", solution=Solution({"x": "short"}))]) == {
            "t": (Leak(f"{shown}/old/work.py", "pkg/work.py", 16, 20),)
        }


@pytest.mark.bubblewrap
async def test_tests_and_lines_that_only_the_solution_has_leak_too(backend, shown):
    secret = [f"the_answer_of_the_task_is_number({number})" for number in range(4)]
    tests = {"test_work.py": "\n".join(f"def test_that_{number}_is_a_value(): ..." for number in range(9))}
    (shown / "notes.txt").write_text("\n".join(["unlike anything", *secret[1:]]))
    (shown / "checks").mkdir()
    (shown / "checks" / "t.py").write_text(tests["test_work.py"])
    asked = task(solution=Solution({"pkg/work.py": "\n".join([BROKEN, *secret])}), test_files=tests)
    async with backend:
        found = await leaks(backend, [asked])
    assert {str(leak) for leak in found["t"]} == {
        f"{shown}/checks/t.py has 9 of 9 lines of test_work.py",
        f"{shown}/notes.txt has 3 of 4 lines of the solution",
    }


@pytest.mark.bubblewrap
async def test_a_task_that_leaks_fails_its_check_until_it_does_not(backend, shown, tmp_path):
    async def check():
        book = Baseline(tmp_path / "baseline.json")
        plan = CheckPlan("bubblewrap", repeats=1)
        (checked,) = await TaskSetCheck(backend, book, plan).run([task()], jobs=1)
        return checked, Baseline(tmp_path / "baseline.json").of(task()).state

    (shown / "copy.py").write_text(GOLD)
    leaky, state = await check()
    assert (leaky.state, state, leaky.entry.gold, leaky.entry.nothing) == ("failed", "failed", (1.0,), 0.0)
    assert leaky.why == (
        f"It can be read in an agent's sandbox: {shown}/copy.py has 20 of 20 lines of pkg/work.py",
    )
    (shown / "copy.py").unlink()
    clean, state = await check()
    assert (clean.state, state, clean.ran) == ("passed", "passed", 0)


@pytest.mark.docker
async def test_an_image_may_have_what_its_task_is_about_but_not_its_tests(tmp_path):
    tests = {"test_work.py": "\n".join(f"def test_that_{number}_is_a_value(): ..." for number in range(9))}
    lay = 'mkdir /opt/x; cd /opt/x; printf %s "$1" > work.py; printf %s "$2" > tests.py'
    step = InstallStep(("sh", "-c", lay, "sh", GOLD, tests["test_work.py"]))
    image = ensure(DockerSettings().image, (step,))
    async with Docker(DockerSettings(workspace_root=tmp_path / "w", spares=0)) as docker:
        found = await leaks(docker, [task(image=image, test_files=tests), task("plain", image=image)])
    assert {name: [str(leak) for leak in each] for name, each in found.items()} == {
        "t": ["/opt/x/tests.py has 9 of 9 lines of test_work.py"]
    }


@pytest.mark.bubblewrap
async def test_a_copy_in_this_environment_leaks_unless_the_task_hides_it(tmp_path):
    text = Path(iniconfig.__file__).read_text()
    tasks = [
        Task(name, "x", solution=Solution({"iniconfig.py": text}), metadata={"hidden": hidden})
        for name, hidden in (("plain", ()), ("other", ("torch",)), ("covered", ("iniconfig",)))
    ]
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        found = await leaks(backend, tasks)
    assert sorted(found) == ["other", "plain"]
    assert {leak.path for leak in found["other"]} == {leak.path for leak in found["plain"]}
    assert iniconfig.__file__ in {leak.path for leak in found["plain"]}
