"""Harnesses fitted to backends: inside images they name nothing of this machine, outside they do."""

import sys
from pathlib import Path

import pytest

from harnessgym.errors import TaskError
from harnessgym.harness import Endpoint
from harnessgym.harnesses.program import INSIDE, NODE_IMAGE, PYTHON_IMAGE
from harnessgym.provisioning import equipment, equipment_of, image_of, make_harness
from harnessgym.registry import names
from harnessgym.run_config.run import HarnessSection
from harnessgym.sandbox import Capability
from harnessgym.task import Task

IMAGES = frozenset({Capability.IMAGE})
ENDPOINT = Endpoint("http://127.0.0.1:8080", "hg-secret", "tiny")
AGENTS = [name for name in names("harness") if name != "command"]
TASK = Task("t/1", "Do it.")
EXAMPLE = Path("examples/lookup_openai.py").resolve()


def section(name, **settings):
    return HarnessSection(name="mine", type=name, settings=settings)


def command(capabilities, **settings):
    return make_harness(section("command", argv=["python", str(EXAMPLE)], **settings), capabilities)


@pytest.mark.parametrize("name", AGENTS)
def test_inside_an_image_an_agent_names_no_program_of_this_machine(name):
    harness = make_harness(section(name), IMAGES)
    launch = harness.launch(TASK, ENDPOINT)
    assert all(Path(path).is_relative_to(EXAMPLE.parent) for path in launch.readable)
    steps = [word for step in harness.install() for word in step.argv]
    assert any(INSIDE in word for word in steps)
    for text in (*launch.argv, *launch.env.values(), *steps):
        assert str(Path.home() / ".cache") not in text
        assert str(Path(sys.prefix)) not in text
    assert any(INSIDE in word for word in launch.argv)


@pytest.mark.parametrize("name", AGENTS)
def test_without_images_an_agent_is_shown_and_nothing_is_installed(name):
    made = equipment(make_harness(section(name)), TASK, frozenset())
    assert (made.image, made.install) == ("", ())
    assert any("/.cache/harnessgym/agents/" in path for path in made.readable)


@pytest.mark.parametrize(("name", "image"), [("mini_swe_agent", PYTHON_IMAGE), ("claude_code", NODE_IMAGE)])
def test_the_image_is_the_tasks_or_the_harnesss_own(name, image):
    harness = make_harness(section(name), IMAGES)
    assert equipment(harness, TASK, IMAGES).image == image
    assert equipment(harness, Task("t/2", "Do it.", image="theirs:1"), IMAGES).image == "theirs:1"
    assert equipment(harness, TASK, IMAGES).install == tuple(harness.install()) != ()
    assert image_of(name) == (image, tuple(harness.install()))


def test_equal_harnesses_have_equal_equipment_whatever_the_task_says():
    harness = make_harness(section("claude_code"), IMAGES)
    assert equipment(harness, TASK, IMAGES) == equipment(harness, Task("other", "Something else."), IMAGES)


def test_a_folder_of_ones_own_is_kept():
    harness = make_harness(section("claude_code", folder="/opt/mine"), IMAGES)
    assert harness.launch(TASK, ENDPOINT).readable == ()
    assert any("/opt/mine" in word for step in harness.install() for word in step.argv)


def test_what_is_said_to_be_outside_stays_outside():
    harness = make_harness(section("claude_code", inside=False), IMAGES)
    assert any("/.cache/harnessgym/agents/" in path for path in harness.launch(TASK, ENDPOINT).readable)


def test_a_command_brings_its_program_and_takes_the_images_python():
    outside, inside = command(frozenset(), python=sys.executable), command(IMAGES, python=sys.executable)
    assert outside.launch(TASK, ENDPOINT).argv[0] == sys.executable
    launch = inside.launch(TASK, ENDPOINT)
    assert launch.argv == ("python", str(EXAMPLE))
    made = equipment(inside, TASK, IMAGES)
    assert (made.image, made.install, made.readable) == (PYTHON_IMAGE, (), (str(EXAMPLE),))


def test_a_warmed_command_in_an_image_is_warmed_by_the_images_python():
    launch = command(IMAGES, python=sys.executable, prewarm=True, warm="openai").launch(TASK, ENDPOINT)
    assert (launch.prewarm.warm, launch.prewarm.python) == ("openai", "")


def test_what_a_task_hides_is_hidden_from_its_agent_and_from_its_grading():
    hiding = Task("t", "x", metadata={"hidden": ["torch", "tool*"]})
    harness = command(frozenset())
    for shown in (
        equipment(harness, hiding, frozenset()),
        equipment_of(hiding),
        equipment_of(hiding, grades=True),
    ):
        assert shown.hidden == ("torch", "tool*")
    assert equipment_of(TASK).hidden == ()


@pytest.mark.parametrize("declared", ["torch", [1], ["a/b"], ["*"], [".."], [""], {"torch": 1}])
def test_what_a_task_hides_are_names(declared):
    with pytest.raises(TaskError, match=r"hidden is .*names of packages"):
        equipment_of(Task("t", "x", metadata={"hidden": declared}))
