"""Restarts within bounds, and the last words of a process."""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessgym.errors import HarnessGymError
from harnessgym.heartbeat import Silence
from harnessgym.supervisor.processes import Restarts, log_tail, restarts


@pytest.fixture
def log(tmp_path):
    return tmp_path / "node.log"


@given(limit=st.integers(0, 6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_process_is_restarted_up_to_the_limit_and_then_no_more(log, limit):
    again = Restarts(limit)
    for number in range(limit):
        again.add("node", log)
        assert again.count == number + 1
    with pytest.raises(HarnessGymError, match=f"The node process ended {limit + 1} times within a minute"):
        again.add("node", log)
    assert again.count == limit


def test_the_refusal_names_the_log_and_ends_with_the_last_of_it(log):
    log.write_text("all is well\nharnessgym: The disk is full.\n")
    with pytest.raises(HarnessGymError) as caught:
        Restarts(0).add("node", log)
    assert str(caught.value).split("\n")[0].endswith(f"Its log is {log}; the last of it:")
    assert str(caught.value).split("\n")[1:] == ["harnessgym: The disk is full."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "(it wrote nothing)"),
        ("  \n\n", "(it wrote nothing)"),
        ("one\ntwo\n", "one\ntwo"),
        ("harnessgym: It failed.\n", "harnessgym: It failed."),
        ("up\nharnessgym: It failed.\nFix it.\n", "harnessgym: It failed.\nFix it."),
        ("harnessgym: First.\nmore\nharnessgym: Second.\n", "harnessgym: Second."),
        ("a line that says harnessgym: inside\nend", "a line that says harnessgym: inside\nend"),
        ("harnessgym:no space\nend", "harnessgym:no space\nend"),
    ],
)
def test_the_last_words_are_our_own_error_or_the_end(log, text, words):
    log.write_text(text)
    assert log_tail(log) == words


def test_a_process_without_a_log_wrote_nothing(log):
    assert log_tail(log) == "(it wrote nothing)"


def test_a_long_log_is_cut_but_an_error_of_ours_is_not(log):
    log.write_text("x" * 100)
    assert log_tail(log, size=10) == "x" * 10
    error = "harnessgym: " + "y" * 20
    log.write_text(f"{'x' * 100}\n{error}")
    assert log_tail(log, size=10) == error


@given(st.binary(max_size=200), st.integers(1, 60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_have_last_words(log, content, size):
    log.write_bytes(content)
    words = log_tail(log, size)
    assert words
    assert len(words) <= max(4 * size, len("(it wrote nothing)"))


@dataclass
class Member:
    """A process that was restarted so often."""

    restarts: int
    where: str = "pid 7"
    silence: Silence = field(default_factory=Silence)


@dataclass
class Group:
    by_name: dict[str, Member]


def test_restarts_are_those_of_the_present_processes():
    group = Group({"proxy": Member(1), "node": Member(2)})
    assert restarts(group) == 3
    del group.by_name["node"]
    assert restarts(group) == 1
    assert restarts(Group({})) == 0
