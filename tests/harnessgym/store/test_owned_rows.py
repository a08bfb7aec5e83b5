"""Rows in the order in which they refer to each other, and rollouts in portions."""

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from harnessgym.store.owned_rows import OWNED, PARENTS, in_portions, parents_first
from harnessgym.store.tables import metadata, rollouts
from tests.harnessgym.store.recorded_runs import add_rollouts, begin_run


@st.composite
def forests(draw):
    size = draw(st.integers(0, 30))
    rows = [
        {"id": str(at), "up": draw(st.sampled_from([None, "elsewhere", *map(str, range(at))]))}
        for at in range(size)
    ]
    return draw(st.permutations(rows))


@given(forests())
def test_parents_come_first(rows):
    found = list(parents_first(rows, "up"))
    assert sorted(found, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])
    place = {row["id"]: at for at, row in enumerate(found)}
    assert all(place[row["up"]] < at for at, row in enumerate(found) if row["up"] in place)


def test_rows_in_a_circle_are_all_given():
    rows = [{"id": "a", "up": "b"}, {"id": "b", "up": "a"}]
    assert len(list(parents_first(rows, "up"))) == 2


def test_every_table_that_names_a_rollout_is_owned():
    """And tables stand behind those that they refer to."""
    naming = {
        table.name
        for table in metadata.tables.values()
        if any(key.column.table is rollouts for key in table.foreign_keys)
    }
    assert naming <= {table.name for table in OWNED}
    seen = set()
    for table in OWNED:
        seen.add(table.name)
        named = {key.column.table.name for key in table.foreign_keys} & {other.name for other in OWNED}
        assert named <= seen
        assert (table.name in named) == (table.name in PARENTS)


def test_portions_hold_every_rollout_once_and_oldest_first(store):
    recording = begin_run(store)
    ids = [name for _ in range(3) for name in add_rollouts(recording, 2)[1]]
    portions = store.read(lambda conn: in_portions(conn, select(rollouts.c.id)))
    assert [name for portion in portions for name in portion] == sorted(ids)
    assert store.read(lambda conn: in_portions(conn, select(rollouts.c.id).where(rollouts.c.id == "x"))) == []
