"""Plans of the shipped tasks: they are made from the package alone, and show a task's fault with fresh inputs."""

import pytest

from environments.swe.building import tasks_of
from environments.swe.manifest import read, write
from environments.swe.package import package
from environments.swe.plans import PackagePlanner
from harnessgym.grading.by_value.judge import KEY
from harnessgym.grading.by_value.plan import JudgementPlan
from harnessgym.grading.cheats.scripted_agent import ScriptedAgent
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure

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


@pytest.mark.docker
async def test_a_shipped_plan_judges_in_a_container_too(tmp_path, anyio_backend):
    """Plans are made with this machine's Python and pytest. The image has versions of its own."""
    task = tasks_of(package("itsdangerous"))[3]
    assert task.metadata[KEY]["tests"]
    ensure(DockerSettings().image, ())
    async with Docker(DockerSettings(workspace_root=tmp_path / "w")) as backend:
        agent = ScriptedAgent(backend)
        solved = await agent.gold(task)
        assert (solved.reward, solved.tampered, solved.error) == (1.0, None, None)
        assert solved.evidence[KEY]["agrees"]
        assert solved.evidence[KEY]["assertions"] > 0
        nothing = await agent.nothing_by_value(task, 1)
        assert (nothing.reward, nothing.tampered, nothing.error) == (0.0, None, None)
        assert nothing.evidence[KEY]["differences"] >= 3


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
