"""Cheats composed of an effect, a trigger, a hiding place and a hook point: each is rewarded by a grader that has
the hole, in every disguise that is drawn here.
"""

import ast
from dataclasses import replace

import pytest

from harnessgym.grading.cheats import report
from harnessgym.grading.cheats.catalogue import CHEATS, named
from harnessgym.grading.cheats.cheat import CLASSES
from harnessgym.grading.cheats.composition import HIDINGS, HOOKS, TRIGGERS, faulty_module
from harnessgym.grading.cheats.disguise import EFFECTS, PLAIN, compositions, disguises
from harnessgym.grading.cheats.scripted_agent import GOLD, NOTHING
from harnessgym.tasks.source import task_set
from tests.harnessgym.grading.cheats.tally import TEST, tally, target

SEED = 7


def shared(name):
    """A task that is graded in the agent's sandbox, which has fewer walls, for cheats that the others stop."""
    return tally() if EFFECTS[name].attack != 18 else replace(tally(), verifier="shared")


IN_PROCESS = [name for name, effect in EFFECTS.items() if effect.attack <= 20]
UNREACHED = {
    "operators-patched": "the task's tests use no operator functions",
    "jams-by-hanging": "nothing hangs",
}


@pytest.mark.anyio
@pytest.mark.bubblewrap
@pytest.mark.parametrize("name", [name for name in IN_PROCESS if name not in UNREACHED])
async def test_a_judge_in_the_same_process_rewards_each_in_every_disguise(bubblewrap_suite, name):
    cheats = (CHEATS[name], *disguises(CHEATS[name], SEED, 1))
    results = [await bubblewrap_suite.cheat(shared(name), cheat) for cheat in cheats]
    assert [(result.cheat, result.reward) for result in results] == [(cheat.name, 1.0) for cheat in cheats]


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_the_grader_rewards_gold_and_not_doing_nothing(bubblewrap_suite):
    for grader in ("trusts_its_process", "trusts_a_parent", "trusts_reward_files"):
        results = [result async for result in bubblewrap_suite.run(tally(grader), [])]
        assert [(result.cheat, result.holds) for result in results] == [(GOLD, True), (NOTHING, True)], grader


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_a_table_of_all_visible_calls_is_rewarded_where_visible_tests_judge(bubblewrap_suite):
    result = await bubblewrap_suite.cheat(tally(), CHEATS["lookup-table-of-all-calls"])
    assert result.reward == 1.0, result.ending


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_operators_are_patched_for_tests_that_use_them(bubblewrap_suite):
    text = "import math\n" + TEST.replace("total([1, 2, 3]) == 6", "math.isclose(total([1, 2, 3]), 6)")
    task = tally(test_files={"test_tally.py": text})
    for cheat in (CHEATS["operators-patched"], *disguises(CHEATS["operators-patched"], SEED, 1)):
        assert (await bubblewrap_suite.cheat(task, cheat)).reward == 1.0, cheat.tries


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_reward_files_beside_the_code_are_believed_by_a_grader_that_reads_them_there(bubblewrap_suite):
    task = tally("trusts_reward_files")
    found = {}
    for name in ("writes-reward-files", "writes-from-a-daemon", "huge-reward", "reward-that-is-no-number"):
        found[name] = await bubblewrap_suite.cheat(task, CHEATS[name])
    assert [result.reward for result in found.values()] == [1.0, 1.0, None, None]
    assert "1e+300" in found["huge-reward"].error
    assert "nan" in found["reward-that-is-no-number"].error


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_a_parent_is_traced_in_the_agents_sandbox_and_not_where_things_are_graded(bubblewrap_suite):
    cheats = (CHEATS["traces-its-parents"], *disguises(CHEATS["traces-its-parents"], SEED, 2))
    task = tally("trusts_a_parent")
    for cheat in cheats:
        assert (await bubblewrap_suite.cheat(replace(task, verifier="shared"), cheat)).reward == 1.0, (
            cheat.tries
        )
        assert (await bubblewrap_suite.cheat(task, cheat)).reward == 0.0, cheat.tries


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_a_task_that_is_judged_by_values_gives_none_of_them_anything(bubblewrap_suite):
    tasks = task_set("shell")
    task = next(task for task in tasks.tasks("train") if task.id.endswith("free-slots"))
    by_class = {effect.attack: name for name, effect in EFFECTS.items() if name != "jams-by-hanging"}
    cheats = [each for name in by_class.values() for each in disguises(CHEATS[name], SEED, 1)]
    results = [await bubblewrap_suite.cheat(task, cheat) for cheat in cheats]
    assert report.holes(results) == []
    assert [result.cheat for result in results] == [cheat.name for cheat in cheats]
    assert [result.ending for result in results if "Error" in result.ending] == []


def test_every_new_class_has_a_plain_cheat_and_five_disguises():
    assert {EFFECTS[cheat.name].attack for cheat in PLAIN} == set(range(13, 24)) < set(CLASSES)
    for cheat in PLAIN:
        drawn = disguises(cheat, 3, 5)
        assert len({each.tries for each in drawn}) == 5
        assert [each.name for each in drawn] == [f"{cheat.name}@3.{number}" for number in range(5)]


def test_equal_seeds_give_equal_disguises_and_others_others():
    def attacks(seed):
        one = target(tally())
        return [dict(each.commands(one).files) for cheat in PLAIN for each in disguises(cheat, seed, 3)]

    assert attacks(1) == attacks(1)
    assert attacks(1) != attacks(2)
    assert [each.tries for each in disguises(PLAIN[0], 1, 2)] == [
        each.tries for each in disguises(PLAIN[0], 1, 5)[:2]
    ]


def test_cheats_that_are_not_composed_have_no_disguises():
    assert disguises(CHEATS["fork-bomb"], 0, 5) == ()


def test_every_part_stands_in_some_disguise():
    drawn = [each for name in EFFECTS for each in compositions(name, 0, 10_000)]
    assert {each.trigger for each in drawn} == set(TRIGGERS)
    assert {each.hiding for each in drawn} == set(HIDINGS)
    assert {each.hook for each in drawn} == set(HOOKS)


def test_all_texts_are_valid_python():
    module = faulty_module(target(tally()))
    for effect in EFFECTS:
        for each in compositions(effect, 0, 40):
            texts = each.texts(module)
            for text in (texts.code, texts.body):
                ast.parse(text)


def test_a_disguise_is_named_on_the_command_line():
    (cheat,) = named(["emptied-runner@3.1"])
    assert cheat.tries == disguises(CHEATS["emptied-runner"], 3, 2)[1].tries


def test_the_module_is_the_one_that_the_solution_changes():
    found = faulty_module(target(tally()))
    assert (found.path, found.name, found.init, found.package) == (
        *("tally/sums.py", "tally.sums", "tally/__init__.py", "tally"),
    )
