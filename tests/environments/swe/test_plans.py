"""Plans of the shipped tasks: they are made from the package alone, and show a task's fault with fresh inputs."""

import pytest

from environments.swe.building import tasks_of
from environments.swe.manifest import read, write
from environments.swe.package import package
from environments.swe.plans import PackagePlanner
from harnessgym.grading.by_value.judge import KEY
from harnessgym.grading.by_value.plan import JudgementPlan
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings

pytestmark = pytest.mark.anyio


@pytest.mark.bubblewrap
async def test_a_plan_shows_the_fault_with_every_seed(tmp_path, anyio_backend):
    task = tasks_of(package("itsdangerous"))[3]
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        planner = PackagePlanner(backend, tmp_path, seeds=3)
        await planner.begin(task)
        made = await planner.plan(task)
    assert min(made.differences) >= 3
    assert any(test.telling for test in made.plan.tests)
    functions = {call.function for call in made.plan.calls}
    assert set(task.metadata["functions"]) <= functions


def test_a_manifest_keeps_plans(tmp_path):
    chosen = package("itsdangerous")
    manifest = read(chosen)
    write(manifest, tmp_path)
    assert read(chosen, tmp_path) == manifest


def test_a_task_carries_its_plan():
    entry = read(package("itsdangerous")).entries[0]
    task = tasks_of(package("itsdangerous"))[0]
    if entry.plan is None:
        assert KEY not in task.metadata
    else:
        assert JudgementPlan.from_dict(task.metadata[KEY]) == entry.plan
