"""Fits harness and sandbox together: makes a harness for a backend, and the equipment of its sandboxes.

With container images the agent is installed in the image, as cached layers. Without, it is installed on this
machine and made readable in the sandbox.
"""

from collections.abc import Set as AbstractSet
from dataclasses import replace

from harnessgym.config import validate
from harnessgym.errors import TaskError
from harnessgym.harness import Endpoint, Harness
from harnessgym.harnesses.program import INSIDE
from harnessgym.registry import load
from harnessgym.run_config.run import HarnessSection
from harnessgym.sandbox import Capability, Equipment, InstallStep
from harnessgym.sandboxes.folders import check_collected, checked_folders
from harnessgym.task import Task

HIDDEN = "hidden"
"""Key of a task's metadata."""
_NOWHERE = Endpoint("http://127.0.0.1", "-")


def make_harness(section: HarnessSection, capabilities: AbstractSet[Capability] = frozenset()) -> Harness:
    """Make a harness from its section of a run's configuration, for a backend with these capabilities.

    Raises `ConfigError` for settings it does not take, `HarnessError` for settings it cannot work with.
    """
    factory = load("harness", section.type)
    settings = section.settings
    fields = factory.settings.model_fields
    if Capability.IMAGE in capabilities and "inside" in fields and "inside" not in settings:
        # In an image the agent is at a fixed place; a folder of this machine would not exist there.
        settings = ({"folder": INSIDE} if "folder" in fields else {}) | settings | {"inside": True}
    harness: Harness = factory(validate(factory.settings, settings, f"harness {section.name!r}"))
    return harness


def equipment(harness: Harness, task: Task, capabilities: AbstractSet[Capability]) -> Equipment:
    """What a sandbox needs before this harness can be launched on this task.

    The harness must have been made for the same capabilities. Raises `HarnessError` if its launch cannot be
    described.
    """
    readable = tuple(dict.fromkeys(harness.launch(task, _NOWHERE).readable))
    if Capability.IMAGE not in capabilities:
        return Equipment(readable=readable, hidden=hidden_packages(task))
    own = equipment_of(task)
    install = (*own.install, *harness.install())
    return replace(own, image=own.image or harness.image, install=install, readable=readable)


def equipment_of(task: Task, *, grades: bool = False) -> Equipment:
    """Equipment of a task without a harness; with `grades` that of its grading sandboxes.

    Raises `TaskError` for a home without an image.
    """
    if task.home and not task.image:
        raise TaskError(
            f"Task {task.id!r} has the home {task.home!r}, but no image that this is a path of. Name the "
            "image."
        )
    testing = task.grading.install if grades or task.verifier == "shared" else ()
    install = tuple(InstallStep(command) for command in (*task.install, *testing))
    check_collected(task.collect, folders := checked_folders(task.folders))
    own = Equipment(
        image=task.image or "", home=task.home, folders=folders, install=install, hidden=hidden_packages(task)
    )
    if not grades:
        return replace(own, env=tuple(sorted(task.env.items())))
    # A grader needs no model. Without the proxy, the agent's code that it runs cannot make calls either.
    return replace(own, image=task.grading.image or own.image, proxy=False, grades=True)


def hidden_packages(task: Task) -> tuple[str, ...]:
    """What a task declares that no sandbox may show of HarnessGym's own environment: `hidden = ["torch"]`.

    These are names in `site-packages`, with wildcards. The package that a task is about may be installed
    there, and others have copies of parts of it. Raises `TaskError` for anything but names.
    """
    declared = task.metadata.get(HIDDEN, ())
    names = declared if isinstance(declared, list | tuple) else (None,)
    for name in names:
        if not isinstance(name, str) or not name.strip("*.") or "/" in name:
            raise TaskError(
                f"Task {task.id!r}: {HIDDEN} is {declared!r}. Give a list of names of packages, such as "
                '["torch", "tool*"].'
            )
    return tuple(names)


def image_of(name: str) -> tuple[str, tuple[InstallStep, ...]]:
    """The default image of a registered harness, and its installation steps."""
    harness = make_harness(HarnessSection(name=name, type=name), frozenset({Capability.IMAGE}))
    return harness.image, tuple(harness.install())
