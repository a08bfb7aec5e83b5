import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.simulation.clock import Clock


@given(st.lists(st.floats(0, 100), max_size=30))
def test_events_happen_in_order_of_time_and_then_of_asking(delays):
    clock, seen = Clock(), []
    for number, delay in enumerate(delays):
        clock.after(delay, lambda number=number: seen.append((clock.now, number)))
    while clock.step():
        pass
    assert seen == sorted((delay, number) for number, delay in enumerate(delays))
    assert clock.events == len(delays)


@pytest.mark.parametrize("delay", [-1e-9, float("nan")])
def test_nothing_can_be_asked_for_in_the_past(delay):
    with pytest.raises(ValueError, match="does not run backwards"):
        Clock().after(delay, print)


def test_events_may_ask_for_events():
    clock, seen = Clock(), []

    def again(left):
        seen.append(clock.now)
        if left:
            clock.after(2.0, again, left - 1)

    clock.after(1.0, again, 2)
    while clock.step():
        pass
    assert seen == [1.0, 3.0, 5.0]
