"""Playing a record: equal requests are answered in order, the first other one is named with its
difference.
"""

import pytest

from harnessgym.errors import StoreError, TraceError
from harnessgym.message import Message, ToolCall, ToolSpec
from harnessgym.traces.replay import Playback, RecordedTurn, ReplayDivergence, Request, compare, replay


def said(*texts, system="", tools=()):
    """Alternating user and assistant messages."""
    roles = ("user", "assistant")
    front = (Message("system", system),) if system else ()
    return Request((*front, *(Message(roles[at % 2], text) for at, text in enumerate(texts))), tools)


def turn(name, request, reason="stop"):
    return RecordedTurn(name, 0, request, (1, 2), (-0.5, -0.5), (0, 0), reason)


def test_requests_are_answered_by_what_they_ask_and_equal_ones_in_order():
    playback = Playback([turn("a", said("one")), turn("b", said("two")), turn("c", said("one"))])
    assert [playback.answer(said(text)).call_id for text in ("two", "one", "one")] == ["b", "a", "c"]
    over = playback.answer(said("one"))
    assert isinstance(over, ReplayDivergence)
    assert "every recorded call has been given" in str(over)


def test_an_answer_that_was_cut_off_is_given_last():
    playback = Playback([turn("cut", said("one"), "abort"), turn("whole", said("one"))])
    assert [playback.answer(said("one")).call_id for _ in range(2)] == ["whole", "cut"]


def test_the_first_divergence_is_told_from_the_nearest_call_and_is_the_last_answer():
    playback = Playback(
        [turn("far", said("other")), turn("near", said("one", "fine", "the third is long enough"))]
    )
    found = playback.answer(said("one", "fine", "the fourth is long enough"))
    assert isinstance(found, ReplayDivergence)
    assert (found.call_id, found.where) == ("near", "message 2 (user)")
    assert "-the third is long" in found.diff
    assert "+the fourth is long" in found.diff
    assert playback.answer(said("other")) is found


@pytest.mark.parametrize(
    ("recorded", "asked", "words"),
    [
        (said("a"), said("a", "b"), ("message 1 (assistant) is not in the record", "+ b")),
        (said("a", "b"), said("a"), ("message 1 (assistant) is in the record only", "- b")),
        (said("a", tools=(ToolSpec("ls"),)), said("a", tools=(ToolSpec("rm"),)), ("other tools", "rm")),
        (said("a", system="Be kind."), said("a", system="Be quick."), ("message 0 (system)", "quick")),
        (said("a"), Request((Message("assistant", "a"),)), ("message 0 (assistant)",)),
        (
            Request((Message("assistant", tool_calls=(ToolCall("1", "ls", '{"path": "a"}'),)),)),
            Request((Message("assistant", tool_calls=(ToolCall("1", "ls", '{"path": "b"}'),)),)),
            ("message 0", '{"path":"b"}'),
        ),
    ],
)
def test_what_differs_is_named(recorded, asked, words):
    found = compare(turn("x", recorded), asked)
    assert found is not None
    assert found.call_id == "x"
    assert all(word in str(found) for word in words), str(found)


def test_what_changes_from_day_to_day_and_how_clients_write_is_no_divergence():
    recorded = Request(
        (
            Message("system", "Today is Monday, 3 March 2025. Working directory: /home/a/project"),
            Message("assistant", tool_calls=(ToolCall("call_1", "ls", '{"path": "a", "n": 1}'),)),
        ),
        (ToolSpec("ls"), ToolSpec("cat")),
    )
    asked = Request(
        (
            Message("system", "Today is Friday, 12 June 2026. Working directory: /srv/b"),
            Message("assistant", tool_calls=(ToolCall("call_2", "ls", '{"n":1.0,"path":"a"}'),)),
        ),
        (ToolSpec("cat"), ToolSpec("ls")),
    )
    assert compare(turn("x", recorded), asked) is None
    assert compare(turn("x", said("12 passed")), said("13 passed")) is not None


def test_without_the_policys_files_nothing_can_be_replayed(recording, tmp_path):
    recording.publish(0)
    _, (rollout_id, _) = recording.group()
    with pytest.raises(TraceError, match="give one to decode its answers"):
        replay(recording.store, rollout_id)
    with pytest.raises(StoreError, match="no rollout 'nobody'"):
        replay(recording.store, "nobody")
