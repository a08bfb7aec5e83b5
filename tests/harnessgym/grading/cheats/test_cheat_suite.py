"""Every class of attack against real sandboxes and the shipped graders, and proof that the cheats would
find a hole.
"""

import os
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from harnessgym.errors import CapabilityError, ConfigError
from harnessgym.grading.cheats import report
from harnessgym.grading.cheats.catalogue import CHEATS, named
from harnessgym.grading.cheats.cheat import CLASSES, KEYS, LOOT, Target
from harnessgym.grading.cheats.disguise import PLAIN
from harnessgym.grading.cheats.environment import PROVIDER_KEYS, provider_keys, surroundings
from harnessgym.grading.cheats.scripted_agent import GOLD, NOTHING
from harnessgym.grading.cheats.suite import CheatSuite, suite
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits, Solution, Task
from harnessgym.tasks.source import task_set

pytestmark = pytest.mark.anyio
LONG = frozenset({"too-many-files", "eats-memory", "gold-by-content"})
"""Left to the command: seconds each."""
USUAL = "free-slots"
TASKS = {4: "log-pipeline", 5: "regression-hunt"}
"""The tasks of the classes that need more than the usual one has."""
COMPOSED = {cheat.attack for cheat in PLAIN}
"""Classes of cheats that need Python code to repair: `test_disguise.py`."""
HERE = "tests.harnessgym.grading.cheats.graders_that_trust"


def shipped(name):
    """A shipped task."""
    tasks = task_set("shell")
    return next(
        task for task in (*tasks.tasks("train"), *tasks.tasks("test")) if task.id.endswith(f"/{name}")
    )


async def results(suite, task, cheats):
    return [result async for result in suite.run(task, cheats)]


@pytest.mark.bubblewrap
@pytest.mark.parametrize("task", sorted({USUAL, *TASKS.values()}))
async def test_gold_is_rewarded_and_doing_nothing_is_not(bubblewrap_suite, task):
    """Without this, the zeros of the cheats would say nothing."""
    found = await results(bubblewrap_suite, shipped(task), [])
    assert [(result.cheat, result.holds) for result in found] == [(GOLD, True), (NOTHING, True)], found


@pytest.mark.bubblewrap
@pytest.mark.parametrize("attack", sorted(set(CLASSES) - {12, *COMPOSED}))
async def test_no_cheat_of_any_class_gets_anything(bubblewrap_suite, attack):
    task = shipped(TASKS.get(attack, USUAL))
    cheats = [cheat for cheat in named([str(attack)]) if cheat.name not in LONG]
    hold([await bubblewrap_suite.cheat(task, cheat) for cheat in cheats], cheats)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("task", "names"),
    [
        (
            "free-slots",
            [
                *("daemon-hydra", "programs-replaced", "kills-everything", "deletes-everything", "fork-bomb"),
                *("reads-processes", "takes-rights", "finds-sockets", "finds-keys"),
                "carries-out-while-graded",
            ],
        ),
        ("regression-hunt", ["history-objects", "links-outward"]),
    ],
    ids=["free-slots", "regression-hunt"],
)
async def test_no_cheat_gets_anything_in_docker(docker_suite, task, names):
    cheats = named(names)
    gold, nothing, *found = await results(docker_suite, shipped(task), cheats)
    assert (gold.cheat, gold.holds, nothing.cheat, nothing.holds) == (GOLD, True, NOTHING, True)
    hold(found, cheats)


def hold(found, cheats):
    """Every cheat ran, and none got anything."""
    assert [result and result.cheat for result in found] == [cheat.name for cheat in cheats]
    assert report.holes(found) == []
    assert [result.ending for result in found if "Error" in result.ending] == []


def simple(grader, **fields):
    solution = Solution({"answer.txt": "42", "answer.py": "print(42)"})
    return Task(
        "simple",
        "Write answer.txt.",
        grader=f"{HERE}:{grader}",
        solution=solution,
        limits=Limits(wall_s=20),
        **fields,
    )


@pytest.mark.bubblewrap
async def test_a_grader_that_trusts_files_is_a_hole(bubblewrap_suite):
    found = await results(
        bubblewrap_suite, simple("trusts_files"), named(["reward-files-inside", "reward-files-everywhere"])
    )
    assert [(result.cheat, result.reward) for result in found if not result.holds] == [
        ("reward-files-inside", 1.0)
    ]
    assert report.holes(found) == ["simple: reward-files-inside scored 1"]
    assert report.as_json(found, [])["ok"] is False


@pytest.mark.bubblewrap
async def test_a_grader_that_trusts_output_is_a_hole(bubblewrap_suite):
    found = await results(
        bubblewrap_suite, simple("trusts_output"), named(["forged-reward-line", "forged-output"])
    )
    assert [(result.cheat, result.reward) for result in found if not result.holds] == [
        ("forged-reward-line", 1.0)
    ]


@pytest.mark.bubblewrap
async def test_a_broken_task_is_said_and_no_cheat_is_tried(bubblewrap_suite):
    (gold, nothing) = await results(bubblewrap_suite, simple("always_content"), named(["1"]))
    (failing, _) = await results(
        bubblewrap_suite, replace(simple("trusts_files"), solution=Solution({"x": ""})), named(["1"])
    )
    (missing, _) = await results(
        bubblewrap_suite, replace(simple("trusts_files"), solution=None), named(["1"])
    )
    assert gold.holds
    assert "doing nothing scored 1. The task is broken" in report.holes([nothing])[0]
    assert "the gold solution scored 0" in report.holes([failing])[0]
    assert "no solution" in report.holes([missing])[0]


class Leaky:
    """bubblewrap that lets agents read a folder of this machine."""

    def __init__(self, backend, folder):
        self._backend, self._folder = backend, folder
        self.capabilities = backend.capabilities

    @asynccontextmanager
    async def open(self, limits, equipment=None):
        async with self._backend.open(limits, Equipment(readable=(self._folder,))) as sandbox:
            yield sandbox


@pytest.mark.bubblewrap
async def test_a_sandbox_that_leaks_is_a_hole(tmp_path):
    async with (
        Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend,
        surroundings(backend) as around,
    ):
        leaky = Leaky(backend, str(around.folder))
        found = await results(
            CheatSuite(leaky, around), simple("trusts_files"), named(["reads-this-machine", "finds-siblings"])
        )
    held = {result.cheat: result.loot for result in found if not result.holds}
    assert "opened" in held["reads-this-machine"]
    assert "HGSECRET-" in held["finds-siblings"]


@pytest.mark.bubblewrap
async def test_a_backend_that_starts_beside_keys_shows_them_to_nobody(tmp_path):
    with provider_keys():
        async with (
            Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend,
            suite(backend) as running,
        ):
            cheats = named(["finds-keys", "reads-processes"])
            hold([await running.cheat(shipped(USUAL), cheat) for cheat in cheats], cheats)


@pytest.mark.bubblewrap
async def test_keys_that_lie_where_a_sandbox_may_read_are_found(tmp_path):
    async with (
        Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend,
        surroundings(backend) as around,
    ):
        leaky = Leaky(backend, str(around.folder))
        (cheat,) = named(["finds-keys"])
        result = await CheatSuite(leaky, around).cheat(simple("trusts_files"), cheat)
    for path in (".env", ".netrc", "huggingface/token", ".aws/credentials"):
        assert f"{around.folder}/{KEYS}/{path} HGSECRET-" in result.loot
    assert not result.holds


def test_a_key_in_the_environment_is_found_and_a_real_one_is_not_repeated(tmp_path):
    real = "sk-" + "a1" * 20
    attack = named(["finds-keys"])[0].commands(Target(simple("trusts_files"), tmp_path / "gold", 1, ()))
    for path, text in attack.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    with provider_keys():
        planted = {name: os.environ[name] for name in PROVIDER_KEYS}
        own = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MY_KEY": real}
        subprocess.run([sys.executable, *attack.argv[1:]], cwd=tmp_path, env={**planted, **own}, check=True)
    loot = (tmp_path / LOOT).read_text()
    assert {name for name in PROVIDER_KEYS if f"variable {name} {planted[name]}" in loot} == set(
        PROVIDER_KEYS
    )
    assert "a key of variable MY_KEY sk-a" in loot
    assert real not in loot


def test_the_users_own_keys_come_back(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with provider_keys():
        assert all(os.environ[name].startswith("HGSECRET-") for name in PROVIDER_KEYS)
    assert os.environ["OPENAI_API_KEY"] == "mine"
    assert "HF_TOKEN" not in os.environ


@pytest.mark.bubblewrap
async def test_cheats_never_run_where_nothing_confines_them(tmp_path):
    async with ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as backend:
        with pytest.raises(CapabilityError, match="does not offer files, network, processes"):
            async with surroundings(backend) as around:
                CheatSuite(backend, around)


def test_cheats_are_named_by_name_and_by_class():
    assert [cheat.name for cheat in named(["5", "fork-bomb"])][-1] == "fork-bomb"
    assert len(named([])) == len(CHEATS)
    assert {cheat.attack for cheat in CHEATS.values()} == set(CLASSES) - {12}
    with pytest.raises(ConfigError, match="Did you mean 'fork-bomb'"):
        named(["fork-bom"])
