import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainers.peers import SHAPE
from trainers.engine.rows import DRAWS, SequenceRows
from trainers.policies.kv_cache import KVCache
from trainers.policies.native_config import NativeConfig

CONFIG = NativeConfig.from_hf(SHAPE | {"architectures": ["LlamaForCausalLM"]})
PROMPT = np.arange(10, 30, dtype=np.int32)


def make_rows(count=3, length=40):
    return SequenceRows(KVCache(CONFIG, count, length), count)


def tokens(*parts):
    return np.array([token for part in parts for token in part], np.int32)


def computed(rows, prompt, salt="", mark=0.0):
    """Admit a prompt, mark its keys and count all of it as computed."""
    row = rows.admit(prompt, salt)
    rows.cache.block[:, :, row, :, : len(prompt)] = mark
    rows.computed[row] = len(prompt)
    return row


def test_prompts_are_admitted_to_the_first_free_rows():
    rows = make_rows()
    assert [rows.admit(PROMPT, ""), rows.admit(PROMPT[:5], "")] == [0, 1]
    assert rows.active == 2
    assert rows.tokens[1, :5].tolist() == PROMPT[:5].tolist()
    assert rows.length[:2].tolist() == [20, 5]
    assert rows.computed[:2].tolist() == [0, 0]
    assert rows.drawn[:2].tolist() == [DRAWS, DRAWS]


def test_the_longest_computed_prefix_is_copied_with_its_keys():
    rows = make_rows()
    computed(rows, PROMPT[:12], mark=1.0)
    computed(rows, PROMPT[:16], mark=2.0)
    row = rows.admit(tokens(PROMPT[:18], [1, 2]), "")
    assert rows.reusable(row) == (1, 16)
    assert rows.reuse(row) == 16
    assert rows.computed[row] == 16
    assert rows.cache.block[:, :, row, :, :16].eq(2.0).all()
    assert rows.cache.block[:, :, row, :, 16:].eq(0.0).all()


def test_at_least_one_token_is_left_to_compute():
    rows = make_rows()
    computed(rows, PROMPT)
    assert rows.reuse(rows.admit(PROMPT, "")) == len(PROMPT) - 1


@pytest.mark.parametrize(("shared", "reused"), [(7, 0), (8, 8)])
def test_prefixes_of_fewer_than_eight_tokens_are_not_reused(shared, reused):
    rows = make_rows()
    computed(rows, PROMPT)
    assert rows.reuse(rows.admit(tokens(PROMPT[:shared], [1] * 12), "")) == reused


def test_rows_of_another_salt_are_not_reused():
    rows = make_rows()
    computed(rows, PROMPT, "ann")
    assert rows.reuse(rows.admit(PROMPT, "bob")) == 0
    assert rows.reuse(rows.admit(PROMPT, "ann")) == len(PROMPT) - 1


def test_a_finished_sequence_that_is_contained_completely_makes_room():
    rows = make_rows()
    rows.retire(computed(rows, PROMPT[:12]))
    row = rows.admit(PROMPT, "")
    finished = int(np.flatnonzero(rows.computed == 12)[0])
    assert rows.reuse(row) == 12
    assert (rows.computed[finished], rows.length[finished]) == (0, 0)


def test_a_finished_sequence_with_more_tokens_is_kept():
    rows = make_rows()
    rows.retire(computed(rows, PROMPT))
    row = rows.admit(tokens(PROMPT[:12], [1, 2, 3]), "")
    assert rows.reuse(row) == 12
    assert sorted(rows.computed.tolist()) == [0, 12, 20]


def test_a_running_sequence_is_kept_however_much_of_it_is_reused():
    rows = make_rows()
    running = computed(rows, PROMPT[:12])
    assert rows.reuse(rows.admit(PROMPT, "")) == 12
    assert rows.computed[running] == 12


def test_the_last_running_sequence_moves_into_the_place_of_a_retired_one():
    rows = make_rows()
    computed(rows, PROMPT, mark=1.0)
    last = computed(rows, PROMPT[::-1], mark=2.0)
    rows.temperature[last] = 0.5
    assert rows.retire(0) == last
    assert rows.active == 1
    assert rows.tokens[0, :20].tolist() == PROMPT[::-1].tolist()
    assert rows.temperature[0] == 0.5
    assert rows.cache.block[:, :, 0, :, :20].eq(2.0).all()
    assert rows.cache.block[:, :, 1, :, :20].eq(1.0).all()


def test_retiring_the_last_sequence_moves_nothing():
    rows = make_rows()
    computed(rows, PROMPT)
    last = computed(rows, PROMPT[::-1])
    assert rows.retire(last) == last
    assert rows.tokens[0, :20].tolist() == PROMPT.tolist()


def test_the_least_recently_used_finished_sequence_is_evicted():
    rows = make_rows()
    for start in (100, 200, 300):
        computed(rows, np.arange(start, start + 10, dtype=np.int32))
    for _ in range(3):
        rows.retire(0)
    # 100 was retired first, then 300, which had moved to its place, then 200.
    rows.admit(PROMPT, "")
    kept = {int(rows.tokens[row, 0]) for row in range(1, 3) if rows.computed[row]}
    assert kept == {200, 300}


def test_the_row_that_a_prompt_will_copy_from_is_not_evicted():
    rows = make_rows()
    for start in (100, 200, 300):
        computed(rows, np.arange(start, start + 10, dtype=np.int32))
    for _ in range(3):
        rows.retire(0)
    row = rows.admit(np.arange(100, 112, dtype=np.int32), "")
    assert rows.reuse(row) == 10


def test_an_empty_row_is_taken_before_a_cached_one():
    rows = make_rows()
    rows.retire(computed(rows, PROMPT))
    rows.admit(PROMPT[::-1], "")
    assert sorted(rows.computed.tolist()) == [0, 0, 20]


def test_tokens_shared_with_other_sequences_need_not_be_computed():
    rows = make_rows()
    first = rows.admit(PROMPT, "")
    second = rows.admit(tokens(PROMPT[:15], [1, 2]), "")
    other = rows.admit(PROMPT, "salt")
    assert rows.shared_with(second, [first]) == 15
    assert rows.shared_with(second, [other]) == 0
    assert rows.reusable(second) == (0, 0)


def test_forgetting_drops_keys_and_keeps_what_runs():
    rows = make_rows()
    running = computed(rows, PROMPT)
    rows.retire(computed(rows, PROMPT[::-1]))
    rows.forget()
    assert rows.computed.tolist() == [0, 0, 0]
    assert rows.length[running] == len(PROMPT)
    assert rows.length[running + 1 :].tolist() == [0, 0]


def test_a_salt_keeps_its_rows_apart_after_forgetting():
    rows = make_rows()
    computed(rows, PROMPT, "ann")
    rows.forget()
    rows.computed[0] = len(PROMPT)
    assert rows.reuse(rows.admit(PROMPT, "bob")) == 0
    assert rows.reuse(rows.admit(PROMPT, "ann")) == len(PROMPT) - 1


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from("aab"), st.integers(0, 2), st.integers(1, 12), st.booleans()), max_size=15
    )
)
def test_what_is_reused_are_the_prompt_s_own_tokens_under_its_own_salt(steps):
    """Each row's keys are marked with its tokens and salt, so a wrong copy shows."""
    rows = make_rows(count=4)
    for salt, family, length, retire in steps:
        prompt = tokens(np.arange(8) + 100 * family, [family] * (length // 3), range(length))
        row = rows.admit(prompt, salt)
        reused = rows.reuse(row)
        marks = torch.tensor(prompt, dtype=torch.float32) + (0.5 if salt == "a" else 0.0)
        keys = rows.cache.block[0, 0, row, 0, :, 0]
        assert reused < len(prompt)
        assert torch.equal(keys[:reused], marks[:reused])
        rows.cache.block[:, :, row, :, : len(prompt)] = marks[:, None]
        rows.computed[row] = len(prompt)
        if retire or rows.active == rows.count:
            rows.retire(0)
