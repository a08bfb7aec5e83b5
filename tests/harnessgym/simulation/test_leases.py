"""The simulator's leases and the store's give the same answers to the same questions."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessgym.simulation.updates import Leases
from harnessgym.store import TraceStore, leases

_NEVER_OVER, _OVER = 1e6, -1.0
"""A time to live that outlasts the test, and one that is over at once."""

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "renew", "release"]),
        st.sampled_from(["update:0", "update:1"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([_NEVER_OVER, _OVER]),
    ),
    max_size=20,
)


@pytest.fixture
def store(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        yield store


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS)
def test_the_simulated_leases_are_those_of_the_store(store, operations):
    for name in ("update:0", "update:1"):
        for holder in "abc":
            store.write(lambda conn, name=name, holder=holder: leases.release(conn, name, holder))
    simulated, now = Leases(), 100.0
    for what, resource, holder, ttl in operations:
        real = store.write(partial(_in_store, what=what, resource=resource, holder=holder, ttl=ttl))
        if what == "release":
            simulated.release(resource, holder)
        else:
            found = getattr(simulated, what)(resource, holder, now, ttl)
            if ttl != _OVER or what == "renew":  # the store asks again who holds what was over at once
                assert found == real
        held = store.read(partial(leases.holder_of, resource=resource))
        assert simulated.holder_of(resource, now) == held


def _in_store(conn, what, resource, holder, ttl):
    if what == "release":
        return leases.release(conn, resource, holder)
    return getattr(leases, what)(conn, resource, holder, ttl)
