"""A function as a reward: what it may return, and where it runs."""

import threading

import pytest

from harnessgym.errors import HarnessGymError, RewardError
from harnessgym.reward import RewardContext, Score
from harnessgym.rewards.code import Code, CodeSettings

pytestmark = pytest.mark.anyio
HERE = "tests.harnessgym.rewards.test_code"
SCORES = [Score("rollout", "", "process.a", 1.0), Score("rollout", "", "process.b", 0.5)]


@pytest.fixture
def record(recording):
    recording.publish(0)
    _, (rollout_id, _) = recording.group()
    return RewardContext(recording.store, rollout_id)


def reward(name, **settings):
    return Code(CodeSettings(function=f"{HERE}:{name}", **settings))


def a_whole_number(_record):
    return 3


def a_flag(_record):
    return True


def one_score(_record):
    return SCORES[0]


def a_list(_record):
    return SCORES


def nothing(_record):
    return []


def written_one_by_one(_record):
    yield from SCORES


def its_threads(_record):
    yield Score("rollout", "", "thread", float(threading.get_ident()))


def a_text(_record):
    return "fine"


def no_value(_record):
    return None


def numbers(_record):
    return [1.0, 2.0]


def fails(_record):
    raise LookupError("lamp")


def fails_late(_record):
    yield SCORES[0]
    raise LookupError("lamp")


@pytest.mark.parametrize(("name", "value"), [("a_whole_number", 3.0), ("a_flag", 1.0)])
async def test_a_number_is_a_score_of_the_rollout(record, name, value):
    assert await reward(name, channel="process.n").score(record) == [Score("rollout", "", "process.n", value)]


@pytest.mark.parametrize(
    ("name", "scores"),
    [("one_score", SCORES[:1]), ("a_list", SCORES), ("nothing", []), ("written_one_by_one", SCORES)],
)
async def test_scores_are_taken_as_they_are(record, name, scores):
    assert await reward(name).score(record) == scores


@pytest.mark.parametrize(
    ("name", "returned"), [("a_text", "'fine'"), ("no_value", "None"), ("numbers", r"\[1\.0, 2\.0\]")]
)
async def test_anything_else_is_refused(record, name, returned):
    with pytest.raises(RewardError, match=rf"{HERE}:{name} returned {returned}: it must return a number"):
        await reward(name).score(record)


@pytest.mark.parametrize("name", ["fails", "fails_late"])
async def test_an_error_of_the_function_is_named_with_it(record, name):
    with pytest.raises(RewardError, match=rf"{HERE}:{name} failed: LookupError: lamp\."):
        await reward(name).score(record)


async def test_a_generator_runs_in_a_thread_too(record):
    (score,) = await reward("its_threads").score(record)
    assert score.value != threading.get_ident()


@pytest.mark.parametrize(("sandbox", "needs"), [(False, frozenset()), (True, frozenset({"sandbox"}))])
async def test_a_function_needs_a_sandbox_if_its_settings_say_so(sandbox, needs):
    assert reward("a_flag", sandbox=sandbox).needs == needs


@pytest.mark.parametrize("function", [f"{HERE}:missing", "no_such_module_here:f"])
async def test_a_function_that_does_not_exist_is_refused_at_once(function):
    with pytest.raises(HarnessGymError, match=function.partition(":")[0]):
        Code(CodeSettings(function=function))
