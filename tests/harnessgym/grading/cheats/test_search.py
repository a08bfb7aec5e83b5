"""The search draws valid, deterministic candidates, reaches every part, and finds the holes of a grader with holes."""

import ast
from itertools import islice

import pytest

from harnessgym.grading.cheats.composition import Composition, faulty_module
from harnessgym.grading.cheats.search import PATCHES, candidates, drawn, unreached
from tests.harnessgym.grading.cheats.tally import tally, target


def test_equal_seeds_draw_equal_candidates_and_others_others():
    def attacks(seed):
        return [cheat.commands(target(tally())) for cheat in islice(candidates(seed), 60)]

    assert attacks(1) == attacks(1)
    assert attacks(1) != attacks(2)


def test_no_candidate_is_drawn_twice():
    digests = [each.digest() for each in islice(drawn(3), 5_000)]
    assert len(set(digests)) == 5_000


def test_all_texts_of_candidates_are_valid_python():
    module = faulty_module(target(tally()))
    for composition in islice(drawn(4), 400):
        texts = composition.texts(module)
        for text in (texts.code, texts.body):
            ast.parse(text)
        (attack,) = composition.cheat("x").commands(target(tally())).files.values()
        ast.parse(attack)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_part_is_reached_in_a_night(seed):
    assert unreached(islice(drawn(seed), 2 * len(PATCHES))) == frozenset()
    assert unreached(islice(drawn(seed), 10))


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_a_short_search_finds_the_holes_of_a_grader_in_the_same_process(bubblewrap_suite):
    found = [await bubblewrap_suite.cheat(tally(), cheat) for cheat in islice(candidates(6), 8)]
    assert len(found) == 8
    assert {result.reward for result in found} == {0.0, 1.0}
    assert [result.ending for result in found if "Error" in result.ending] == []


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_a_patch_of_the_test_runner_is_a_hole_too(bubblewrap_suite):
    patch = PATCHES["_pytest.runner:CallInfo.from_call/swallowed/always"]
    item = PATCHES["_pytest.python:Function.runtest/nothing/names-the-package"]
    rewards = [
        (await bubblewrap_suite.cheat(tally(), Composition(each).cheat("x"))).reward for each in (patch, item)
    ]
    assert rewards == [0.0, 1.0]
