"""Real agents in containers: a shipped task, nothing in reach but the proxy, every token kept, graded in a
fresh container.
"""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from environments.swe.edit import patch
from harnessgym.provisioning import make_harness
from harnessgym.run_config.run import HarnessSection
from harnessgym.sandbox import SandboxBackend
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.task import Task
from harnessgym.tasks.source import task_set
from harnessgym.traces.trajectories import rows_of
from harnessgym.traces.verification.verify import verify
from proxies.renderers.template import TemplateRenderer
from tests.suites.harnesses.actor import Actor, Move, Part
from tests.suites.harnesses.plans import TOOLS
from tests.suites.harnesses.run import POLICY, TOKENIZER_STEPS, language, prepared
from tests.suites.harnesses.stage import open_stage

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.agents, pytest.mark.timeout(600)]
_TASK = "service-config"
_PROBE = (
    "bash -c 'exec 3<>/dev/tcp/1.1.1.1/443' 2>&1; ls /var/run/docker.sock 2>&1; "
    "grep -E 'Cap(Eff|Bnd)|NoNewPrivs' /proc/self/status | tr '\\t' ' '"
)


def docker(work: Path, socket: Path) -> SandboxBackend:
    return Docker(DockerSettings(workspace_root=work, proxy_socket_dir=socket))


def the_task() -> Task:
    (task,) = [
        task for split in ("train", "test") for task in task_set("shell").tasks(split) if _TASK in task.id
    ]
    limits = replace(task.limits, wall_s=240.0, memory_mb=2_048, processes=512, cpus=2.0)
    return replace(task, instruction=f"[[main]] {task.instruction}", limits=limits)


def a_repair() -> Task:
    """The first task of the shipped packages that are held out."""
    task = task_set("swe").tasks("test")[0]
    limits = replace(task.limits, wall_s=240.0, memory_mb=2_048, processes=512, cpus=2.0)
    return replace(task, instruction=f"[[main]] {task.instruction}", limits=limits)


def solved(task: Task) -> str:
    """What writes the known solution."""
    solution = task.solution
    assert solution is not None
    write = [f"printf %s {shlex.quote(text)} > {shlex.quote(path)}" for path, text in solution.files.items()]
    return " && ".join([*write, *map(shlex.join, solution.run)])


def patched(change: str) -> str:
    """What applies a patch, and says what has changed."""
    return f"printf %s {shlex.quote(change)} | git apply - && git diff --stat"


def parts(name: str, script: str) -> dict[str, Part]:
    """Look around, run a script with the agent's own shell, and end as this agent ends."""
    tools = TOOLS[name]
    end = Move("I am done.", (tools.run(tools.finish),)) if tools.finish else Move("I am done.")
    return {
        "main": [
            Move("I look around.", (tools.run(_PROBE),)),
            Move("Now the work.", (tools.run(script),)),
            end,
        ]
    }


@pytest.mark.parametrize("name", ["mini_swe_agent", "claude_code"])
async def test_an_agent_solves_a_shipped_task_in_a_container_with_nothing_in_reach_but_the_proxy(
    name: str,
) -> None:
    if not prepared(TOKENIZER_STEPS):
        pytest.skip("the tokenizer is not installed; `python -m tests.suites.harnesses.run` installs it")
    task, harness = the_task(), make_harness(HarnessSection(name=name, type=name), Docker.capabilities)
    renderer = language().renderer
    assert isinstance(renderer, TemplateRenderer)
    actor = Actor(renderer, parts(name, solved(task)))
    async with open_stage(language(), actor, POLICY, max_length=200_000, make_backend=docker) as stage:
        played = await stage.play(harness, task, sampling={"max_tokens": 4_096}, history="keep")
        said = (played.result.stdout + played.result.stderr)[-3_000:].decode(errors="replace")
        assert played.grade.rewards["reward"] == 1.0, (played.grade, said)
        assert played.grade.tampered is None
        assert played.grade.evidence["mode"] == "separate"
        assert actor.problems == []
        asked = "".join(
            renderer.decode(prompt)
            for upstream in stage.upstreams.values()
            for prompt in (each.prompt for each in upstream.asked)
        )
        assert "CapEff: 0000000000000000" in asked
        assert "CapBnd: 0000000000000000" in asked
        assert "NoNewPrivs: 1" in asked
        assert "Network is unreachable" in asked
        assert list(verify(stage.store, None).findings) == []
        trajectory = stage.store.read(lambda conn: rows_of(conn, stage.row.id, group_id=stage.row.group_id))
        assert trajectory.incomplete is None
        assert 0 < trajectory.trained <= trajectory.sampled


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", ["mini_swe_agent", "claude_code"])
async def test_an_agent_repairs_a_shipped_package_in_a_container_and_a_wrong_patch_is_worth_nothing(
    name: str, right: bool
) -> None:
    if not prepared(TOKENIZER_STEPS):
        pytest.skip("the tokenizer is not installed; `python -m tests.suites.harnesses.run` installs it")
    task, harness = a_repair(), make_harness(HarnessSection(name=name, type=name), Docker.capabilities)
    assert task.solution is not None
    remarked = {path: f"{task.files[path]}\n# Repaired.\n" for path in task.solution.files}
    change: str = task.metadata["gold_patch"] if right else patch(task.files, remarked)
    renderer = language().renderer
    assert isinstance(renderer, TemplateRenderer)
    actor = Actor(renderer, parts(name, patched(change)))
    async with open_stage(language(), actor, POLICY, max_length=200_000, make_backend=docker) as stage:
        played = await stage.play(harness, task, sampling={"max_tokens": 16_384}, history="keep")
        said = (played.result.stdout + played.result.stderr)[-3_000:].decode(errors="replace")
        assert played.grade.rewards["reward"] == float(right), (played.grade, said)
        assert played.grade.tampered is None
        assert actor.problems == []
        assert list(verify(stage.store, None).findings) == []
