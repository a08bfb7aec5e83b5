from concurrent.futures import Future

import pytest

from harnessgym.errors import PolicyError, UpstreamError
from trainers.engine.sequence import promise


def stopped():
    return UpstreamError("The engine has been closed.")


def failing(error):
    def work():
        raise error

    return work


def test_work_that_is_done_settles_its_future():
    done, calls = Future(), []
    promise(done, lambda: calls.append("work"), stopped).do()
    assert calls == ["work"]
    assert done.result(timeout=0) is None


@pytest.mark.parametrize("error", [PolicyError("no such weight"), RuntimeError("shapes differ")])
def test_an_expected_failure_goes_to_the_caller_alone(error):
    done = Future()
    promise(done, failing(error), stopped).do()
    assert done.exception(timeout=0) is error


def test_an_unexpected_failure_goes_to_the_caller_and_to_the_engine():
    done, error = Future(), KeyError("layer")
    with pytest.raises(KeyError):
        promise(done, failing(error), stopped).do()
    assert isinstance(done.exception(timeout=0), UpstreamError)
    assert str(done.exception()) == "The engine has failed: KeyError('layer'). Restart it."


def test_a_dropped_order_says_why_the_engine_stopped():
    done, calls = Future(), []
    promise(done, lambda: calls.append("work"), stopped).drop()
    assert calls == []
    with pytest.raises(UpstreamError, match="The engine has been closed"):
        done.result(timeout=0)


def test_a_cancelled_order_does_nothing():
    done, calls = Future(), []
    order = promise(done, lambda: calls.append("work"), stopped)
    assert done.cancel()
    order.do()
    assert calls == []


def test_a_cancelled_order_may_be_dropped():
    done = Future()
    order = promise(done, lambda: None, stopped)
    assert done.cancel()
    order.drop()
    assert done.cancelled()
