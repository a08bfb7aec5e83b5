"""How long what is trained is, beside what was drawn."""

import pytest
from sqlalchemy import select, update

from harnessgym.store import TraceStore, rollouts, runs
from harnessgym.store.durations import lengths
from harnessgym.store.tables import calls, groups
from harnessgym.store.tables import rollouts as rollouts_table
from tests.trainers.recorded_run import make_run, record_groups, save_model
from trainers.learner import LengthBias


@pytest.fixture
def recorded(tmp_path):
    folder = make_run(tmp_path / "run", save_model(tmp_path / "model"))
    with TraceStore.open(folder.store_url()) as store:
        yield folder, store, store.read(runs.only).id


def set_length(store, ordinal, tokens):
    """Let every call of a group have sampled so many."""
    members = select(rollouts_table.c.id).join(groups, groups.c.id == rollouts_table.c.group_id)
    ours = calls.c.rollout_id.in_(members.where(groups.c.ordinal == ordinal).scalar_subquery())
    store.write(lambda conn: conn.execute(update(calls).where(ours).values(completion_len=tokens)))


def ids(store, run):
    return [item.id for item in store.read(lambda conn: lengths(conn, run, 0))]


def test_it_is_the_mean_of_what_is_trained_over_that_of_all_that_ended(recorded):
    folder, store, run = recorded
    bias = LengthBias(store, run)
    assert bias.measure() == 1.0
    record_groups(folder, range(4), unfinished=(3,))
    for ordinal, tokens in ((1, 12), (2, 12)):
        set_length(store, ordinal, tokens)
    names = ids(store, run)
    assert bias.measure() == 1.0
    assert bias.measure(names[:1]) == pytest.approx(6 / 10)
    for name, state in zip(names, ("consumed", "dropped", "consumed"), strict=False):
        store.write(lambda conn, name=name, state=state: rollouts.set_group_state(conn, name, state))
    assert bias.measure() == pytest.approx(9 / 10)
    record_groups(folder, range(4, 6))
    assert bias.measure(ids(store, run)[4:5]) == pytest.approx(8 / ((6 + 12 + 12 + 6 + 6) / 5))


def test_settled_groups_are_asked_for_once_and_a_new_process_finds_the_same(recorded):
    folder, store, run = recorded
    record_groups(folder, range(4))
    set_length(store, 0, 12)
    bias = LengthBias(store, run)
    for name in ids(store, run)[:2]:
        store.write(lambda conn, name=name: rollouts.set_group_state(conn, name, "consumed"))
    found = bias.measure()
    assert found == pytest.approx(9 / 7.5)
    set_length(store, 0, 600)  # it is not looked at again
    assert bias.measure() == found
    set_length(store, 0, 12)
    assert LengthBias(store, run).measure() == found
