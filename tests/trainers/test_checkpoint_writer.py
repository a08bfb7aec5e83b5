import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.checkpoint import Checkpoint, CheckpointWriter, RandomState, staged

DEADLINE_S = 30.0


def stepped(value=1.0):
    """A parameter and its optimizer, one step on."""
    parameter = torch.nn.Parameter(torch.full((4,), value))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    step(parameter, optimizer)
    return parameter, optimizer


def step(parameter, optimizer):
    parameter.grad = torch.ones(4)
    optimizer.step()


def state(number, optimizer):
    return Checkpoint(number, number, {}, optimizer, (RandomState.here(),), None, {})


def moments(optimizer):
    return optimizer["state"][0]["exp_avg"].clone()


def test_what_is_written_is_what_was_staged_however_many_steps_are_taken_meanwhile():
    parameter, optimizer = stepped()
    go_on, seen = threading.Event(), []

    def commit(found):
        assert go_on.wait(DEADLINE_S)
        seen.append(moments(found.optimizer))

    writer = CheckpointWriter(commit, lazy=True)
    expected = moments(optimizer.state_dict())
    writer.submit(state(1, writer.stage(optimizer.state_dict())))
    step(parameter, optimizer)
    assert not torch.equal(moments(optimizer.state_dict()), expected)
    go_on.set()
    writer.settle()
    assert torch.equal(seen[0], expected)
    writer.close()


def test_the_next_copy_waits_for_the_one_before(caplog):
    _, optimizer = stepped()
    go_on, order = threading.Event(), []

    def commit(found):
        assert go_on.wait(DEADLINE_S)
        order.append(found.step)

    writer = CheckpointWriter(commit, lazy=True)
    writer.submit(state(1, writer.stage(optimizer.state_dict())))
    threading.Timer(0.05, go_on.set).start()
    staging = writer.stage(optimizer.state_dict())
    assert order == [1]
    writer.submit(state(2, staging))
    writer.close()
    assert order == [1, 2]


def test_the_same_memory_is_used_again():
    _, optimizer = stepped()
    writer = CheckpointWriter(lambda found: None, lazy=True)
    first = writer.stage(optimizer.state_dict())["state"][0]["exp_avg"]
    assert writer.stage(optimizer.state_dict())["state"][0]["exp_avg"] is first
    writer.close()


@pytest.mark.parametrize("lazy", [True, False])
def test_what_stops_a_checkpoint_is_raised_once(lazy):
    _, optimizer = stepped()

    def commit(found):
        raise OSError("the disk is full")

    writer = CheckpointWriter(commit, lazy=lazy)

    def commit_one():
        writer.submit(state(1, writer.stage(optimizer.state_dict())))
        writer.stage(optimizer.state_dict())

    with pytest.raises(OSError, match="the disk is full"):
        commit_one()
    writer.settle()
    writer.close()


LEAVES = st.integers() | st.text(max_size=3) | st.lists(st.floats(-1, 1), max_size=3).map(torch.tensor)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 3), inner, max_size=3)
)


def same(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second) and (not first.numel() or first.data_ptr() != second.data_ptr())
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@given(TREES, TREES)
def test_a_copy_equals_what_was_copied_whatever_it_is_copied_into_and_shares_no_memory(value, earlier):
    assert same(staged(value, staged(earlier)), value)
