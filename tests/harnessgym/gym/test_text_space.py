"""Any text fits into a space, and what fits already stays as it is."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.gym.text_space import CHARSET, REPLACEMENT, ShortText, fit

SPACE = ShortText(80)


@given(st.text(), st.integers(0, 10**9))
def test_whatever_is_said_lies_in_the_space(said, missing):
    assert SPACE.contains(fit(said * 3, 80, missing))


@given(st.text(alphabet=sorted(CHARSET), max_size=80))
def test_what_fits_is_not_changed(said):
    assert fit(said, 80) == said


@given(st.text(min_size=1), st.integers(0, 200))
def test_no_bound_is_passed_however_small(said, most):
    assert len(fit(said, most)) <= most


def test_the_middle_is_left_out_and_counted():
    assert fit("a" * 100 + "b" * 100, 80) == f"{'a' * 22}\n[... 155 characters left out ...]\n{'b' * 23}"


def test_what_was_lost_before_is_marked():
    assert fit("rest", 80, 12) == "[... 12 bytes left out ...]\nrest"


def test_other_characters_are_replaced_one_by_one():
    assert fit("\x00\x1b漢é─\n", 80) == f"{REPLACEMENT * 3}é─\n"


def test_samples_lie_in_the_space_follow_the_seed_and_differ():
    spaces = [ShortText(500, seed=seed) for seed in (1, 1, 2)]
    one, same, other = ([space.sample() for _ in range(50)] for space in spaces)
    assert one == same != other
    assert all(spaces[0].contains(text) for text in one)


def test_masks_are_obeyed_as_in_any_text_space():
    space = ShortText(20, seed=0)
    mask = np.zeros(len(space.character_list), dtype=np.int8)
    mask[space.character_index("x")] = 1
    assert space.sample(mask=(3, mask)) == "xxx"


@pytest.mark.parametrize("letter", ["\n", "\t", "~", "ü", "→", "│", "✓"])
def test_the_charset_has_what_programs_write(letter):
    assert letter in CHARSET


def test_spaces_travel_between_processes():
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE
