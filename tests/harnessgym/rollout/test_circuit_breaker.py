import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import SandboxError
from harnessgym.outcome.failure import StopReason
from harnessgym.rollout.resource_admission import CircuitBreaker
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow

ROW = RolloutRow("r", "g", "run", "policy", 0, 0, "pi", 0, "train", "task", {}, 0)
OUTCOME = RolloutOutcome("r", StopReason.NO_CALLS, "infrastructure_error", detail="It never called.")


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 8))
def test_it_ends_exactly_at_the_limit_of_failures_in_a_row(successes, limit):
    patience, in_a_row = CircuitBreaker(limit), 0
    for success in successes:
        in_a_row = 0 if success else in_a_row + 1
        if success:
            patience.succeeded()
        elif in_a_row < limit:
            patience.failed(ROW, OUTCOME)
        else:
            with pytest.raises(
                SandboxError, match=f"{limit} rollouts in a row.*'pi': no_calls: It never called."
            ):
                patience.failed(ROW, OUTCOME)
            return


@given(st.lists(st.sampled_from(["complete", "dropped"]), max_size=60), st.integers(1, 8))
def test_it_ends_exactly_at_the_limit_of_dropped_groups_in_a_row(ends, limit):
    patience, states, in_a_row = CircuitBreaker(limit), {"complete": 0, "dropped": 0}, 0
    patience.groups(states)
    for end in ends:
        states[end] += 1
        in_a_row = 0 if end == "complete" else in_a_row + 1
        if in_a_row < limit:
            patience.groups(states)
        else:
            with pytest.raises(SandboxError, match=f"{limit} groups in a row were dropped"):
                patience.groups(states)
            return


def test_groups_dropped_before_it_looked_do_not_count():
    patience = CircuitBreaker(2)
    patience.groups({"dropped": 50})
    patience.groups({"dropped": 51})


def test_consumed_groups_are_of_use():
    patience = CircuitBreaker(2)
    patience.groups({"complete": 1})
    patience.groups({"consumed": 2, "dropped": 2})
    patience.groups({"consumed": 2, "dropped": 3})


def test_groups_that_failed_on_other_nodes_have_no_last_failure_here():
    breaker = CircuitBreaker(2)
    breaker.groups({})
    with pytest.raises(SandboxError) as caught:
        breaker.groups({"dropped": 2})
    first, remedy = str(caught.value).split("\n")
    assert first.endswith("the trainer gets nothing. This node saw none of the failures.")
    assert remedy == "Fix this and start the run again; it resumes."


def test_dropped_groups_are_explained_by_the_last_failure_of_this_node():
    breaker = CircuitBreaker(2)
    breaker.groups({})
    breaker.failed(ROW, OUTCOME)
    breaker.succeeded()
    with pytest.raises(SandboxError, match=r"The last failure, of harness 'pi': no_calls: It never called\."):
        breaker.groups({"dropped": 2})
