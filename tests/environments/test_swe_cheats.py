"""Cheats of every class against tasks of every package: where pytest has been fooled, judging by value is not.

Each of 55 tasks meets one of five disguises of one of the eleven classes of attack on judges, so that each of
these 55 is tried. `python -m benchmarks.cheat_search --every 1 --disguises 5` tries all on all tasks.
"""

from dataclasses import replace

import pytest

from environments.swe.building import tasks_of
from environments.swe.package import packages
from harnessgym.grading.by_value.judge import is_judged_by_value
from harnessgym.grading.cheats.disguise import EFFECTS, compositions
from harnessgym.grading.cheats.suite import suite
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap]
CLASSES = sorted({effect.attack for effect in EFFECTS.values()})
DISGUISES = 5
EACH = 5
"""Tasks of a package."""


@pytest.fixture(scope="module")
async def cheats(tmp_path_factory, anyio_backend):
    settings = BubblewrapSettings(workspace_root=tmp_path_factory.mktemp("w"))
    async with Bubblewrap(settings) as backend, suite(backend) as running:
        yield running


def drawn(number):
    """A disguise of one of the effects of a class. Numbers of a row of 55 give each class five times."""
    attack = CLASSES[number % len(CLASSES)]
    turn = number // len(CLASSES) % DISGUISES
    names = [name for name, effect in EFFECTS.items() if effect.attack == attack]
    return compositions(names[turn % len(names)], 7, DISGUISES)[turn].cheat(f"{attack}.{turn}")


def test_every_task_is_judged_by_value():
    tasks = [task for package in packages().values() for task in tasks_of(package)]
    assert [task.id for task in tasks if not is_judged_by_value(task)] == []


def test_each_class_is_drawn_in_five_disguises():
    names = {drawn(number).name for number in range(EACH * len(packages()))}
    assert len(names) == DISGUISES * len(CLASSES) == 55


@pytest.mark.parametrize("place", range(len(packages())), ids=list(packages()))
async def test_no_cheat_is_rewarded(cheats, place):
    package = list(packages().values())[place]
    tasks = tasks_of(package)[:: len(tasks_of(package)) // EACH][:EACH]
    results = []
    for number, task in enumerate(tasks):
        fooled = replace(task, grader="tests.support.trusting_grader:verifier")
        result = await cheats.cheat(fooled, drawn(place * EACH + number))
        if result is not None:
            results.append(result)
    assert len(results) >= EACH // 2
    for result in results:
        assert result.holds, result
        assert result.reward == 0.0, result
        assert result.error is None, result
