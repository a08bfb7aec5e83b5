"""Packed rows: every token once, every row whole, and what comes out is what whole rows give."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.routed_experts import RowExperts
from tests.trainers.peers import peer_and_policy
from trainers.packing import micro_batches, pack, packed_size, shared_beginning, sharing_keys
from trainers.policy import token_logprobs


def ids(*values):
    return np.array(values, dtype=np.int32)


@st.composite
def forests(draw):
    """Rows that branch off each other at random, int32 [T] each."""
    rows = [ids(*draw(st.lists(st.integers(0, 96), min_size=1, max_size=40)))]
    for _ in range(draw(st.integers(0, 7))):
        stem = draw(st.sampled_from(rows))
        kept = draw(st.integers(0, len(stem)))
        further = draw(st.lists(st.integers(0, 96), min_size=0 if kept else 1, max_size=24))
        rows.append(np.concatenate([stem[:kept], ids(*further)]))
    return rows


@settings(max_examples=60)
@given(rows=forests())
def test_a_token_attends_to_its_path_alone_by_intervals(rows):
    packed = pack(rows)
    enter, leave = (each.numpy() for each in packed.intervals())
    assert sorted(enter.tolist()) == list(range(len(enter)))
    for path in packed.paths:
        for at, token in enumerate(path):
            attended = np.flatnonzero((enter <= enter[token]) & (enter[token] < leave))
            assert set(attended.tolist()) == set(path[: at + 1].tolist())


@settings(max_examples=60)
@given(rows=forests())
def test_a_path_spells_its_row_and_no_token_stands_twice_for_nothing(rows):
    packed = pack(rows)
    found = packed.ids_N.numpy()
    for row, path in zip(rows, packed.paths, strict=True):
        assert (found[path] == row).all()
        assert (packed.positions_N.numpy()[path] == np.arange(len(row))).all()
    assert set(np.concatenate(packed.paths)) == set(range(len(found)))
    assert packed_size(rows) == len(found) <= sum(map(len, rows))


@settings(max_examples=40)
@given(rows=forests(), family=st.sampled_from(["qwen3", "llama"]), temperature=st.sampled_from([1.0, 0.6]))
def test_logprobs_and_gradients_are_those_of_whole_rows(rows, family, temperature):
    _, policy = peer_and_policy(family, tie_word_embeddings=family == "qwen3")
    policy.double()
    masks = [(np.arange(len(row)) > 0) & (np.arange(len(row)) % 3 != 1) for row in rows]
    pack(rows)
    ours = policy.logprobs(rows, masks, temperature)
    whole = [token_logprobs(policy(torch.from_numpy(row[None]).long()), torch.from_numpy(row[None]).long(), temperature)[0]
             for row in rows]  # fmt: skip
    assert ours.dtype == whole[0].dtype == torch.float64
    expected = torch.cat([found[torch.from_numpy(mask)] for found, mask in zip(whole, masks, strict=True)])
    assert torch.allclose(ours, expected, atol=1e-6)
    if not len(ours):
        return
    weights = torch.linspace(-1, 1, len(ours))
    gradients = [
        torch.autograd.grad((weights * found).sum(), list(policy.parameters())) for found in (ours, expected)
    ]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@settings(max_examples=60)
@given(units=st.lists(forests(), max_size=6), limit=st.integers(1, 200))
def test_micro_batches_hold_every_unit_once_within_the_limit(units, limit):
    batches = micro_batches(units, limit)
    assert sorted(index for batch in batches for index in batch) == list(range(len(units)))
    for batch in batches:
        assert len(batch) == 1 or packed_size([row for index in batch for row in units[index]]) <= limit


def test_rows_that_begin_alike_are_in_one_batch():
    stem = np.arange(40, dtype=np.int32)
    rows = [np.concatenate([stem + 40 * (number % 2), ids(90 + number)]) for number in range(6)]
    assert [sorted(batch) for batch in micro_batches([[row] for row in rows], 43)] == [[0, 2, 4], [1, 3, 5]]
    assert packed_size(rows) == 2 * 40 + 6


@settings(max_examples=40)
@given(rows=forests(), seed=st.integers(0, 99))
def test_keys_are_equal_exactly_where_tokens_and_experts_are(rows, seed):
    draw = np.random.default_rng(seed)
    routing = [
        None if draw.random() < 0.2
        else RowExperts(draw.integers(0, 2, (len(row), 1, 1)).astype(np.uint8), draw.random(len(row)) < 0.7)
        for row in rows
    ]  # fmt: skip
    keys = sharing_keys(rows, routing)

    def experts(number, at):
        routed = routing[number]
        return int(routed.experts[at, 0, 0]) if routed is not None and routed.recorded[at] else None

    assert sharing_keys(rows, None) is rows
    for one in range(len(rows)):
        assert keys[one].dtype == np.int32
        for other in range(one):
            shared = shared_beginning(keys[one], keys[other])
            ends = min(len(rows[one]), len(rows[other]))
            for at in range(min(shared + 1, ends)):
                same = rows[one][at] == rows[other][at] and experts(one, at) == experts(other, at)
                assert same == (at < shared)
    packed = pack(rows, keys=keys)
    found = packed.ids_N.numpy()
    assert packed_size(keys) == len(found)
    for number, (row, path) in enumerate(zip(rows, packed.paths, strict=True)):
        assert (found[path] == row).all()
        for other in range(number):
            for at in np.flatnonzero(path[: len(packed.paths[other])] == packed.paths[other][: len(path)]):
                assert experts(number, at) == experts(other, at)
