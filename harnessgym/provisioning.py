"""What a harness and a sandbox need of each other: a harness fitted to a backend, and the equipment its
sandboxes have.

With container images the agent lies in the image, put there as cached layers; without, it is this machine's,
and shown.
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

_NOWHERE = Endpoint("http://127.0.0.1", "-")


def make_harness(section: HarnessSection, capabilities: AbstractSet[Capability] = frozenset()) -> Harness:
    """A harness from its section of a run's configuration, for a backend that offers these capabilities.

    Raises ConfigError for settings it does not take, HarnessError for those it cannot be described with.
    """
    factory = load("harness", section.type)
    settings = section.settings
    fields = factory.settings.model_fields
    if Capability.IMAGE in capabilities and "inside" in fields and "inside" not in settings:
        settings = ({"folder": INSIDE} if "folder" in fields else {}) | settings | {"inside": True}
    harness: Harness = factory(validate(factory.settings, settings, f"harness {section.name!r}"))
    return harness


def equipment(harness: Harness, task: Task, capabilities: AbstractSet[Capability]) -> Equipment:
    """What must be in a sandbox before this harness can be launched on this task.

    The harness must have been made for the same capabilities. Raises HarnessError if its launch cannot be
    described.
    """
    readable = tuple(dict.fromkeys(harness.launch(task, _NOWHERE).readable))
    if Capability.IMAGE not in capabilities:
        return Equipment(readable=readable)
    own = equipment_of(task)
    install = (*own.install, *harness.install())
    return replace(own, image=own.image or harness.image, install=install, readable=readable)


def equipment_of(task: Task, *, grades: bool = False) -> Equipment:
    """What a task's sandboxes have beside a harness, or those that grade. Raises TaskError for a home
    without an image.
    """
    if task.home and not task.image:
        raise TaskError(
            f"Task {task.id!r} has the home {task.home!r}, but no image that this is a path of. Name the "
            "image."
        )
    testing = task.grading.install if grades or task.verifier == "shared" else ()
    install = tuple(InstallStep(command) for command in (*task.install, *testing))
    check_collected(task.collect, folders := checked_folders(task.folders))
    own = Equipment(image=task.image or "", home=task.home, folders=folders, install=install)
    if not grades:
        return replace(own, env=tuple(sorted(task.env.items())))
    return replace(own, image=task.grading.image or own.image, proxy=False)


def image_of(name: str) -> tuple[str, tuple[InstallStep, ...]]:
    """The image that a registered harness runs in by default, and what is installed there."""
    harness = make_harness(HarnessSection(name=name, type=name), frozenset({Capability.IMAGE}))
    return harness.image, tuple(harness.install())
