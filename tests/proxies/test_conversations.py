"""What is held of a session's calls, and which of them a restarted proxy must read again to hold the same."""

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import Message
from harnessgym.store.calls import RecordedCall
from proxies.conversations import Conversations, SeenPrefixes, latest
from proxies.dialect import ModelRequest


def recorded(call_id: str, parent: str | None, ordinal: int) -> RecordedCall:
    return RecordedCall(
        call_id,
        "s",
        "r",
        None,
        ordinal,
        "policy",
        "committed",
        parent,
        "",
        "",
        "",
        1,
        "p",
        1,
        "c",
        "stop",
        "chat",
        None,
        (),
        {},
    )


@given(st.lists(st.none() | st.integers(0, 10**6), max_size=60))
def test_the_store_tells_which_conversations_were_held(links: list[int | None]) -> None:
    """A link is the earlier call that a call continues."""
    conversations, calls = Conversations(), list[RecordedCall]()
    for ordinal, link in enumerate(links):
        parent = None if link is None or not calls else calls[link % len(calls)].id
        calls.append(recorded(f"c{ordinal}", parent, ordinal))
        conversations.begin(f"c{ordinal}", ModelRequest("m", (Message("user", str(ordinal)),)), parent)
    held = conversations.newest_first()
    assert [conversation.call_id for conversation in held] == [call.id for call in reversed(latest(calls))]
    again = Conversations()
    kept = {conversation.call_id: ModelRequest("m", conversation.messages) for conversation in held}
    for call in calls:
        again.begin(call.id, kept.get(call.id), call.parent_call_id)
    assert again.newest_first() == held


def test_the_turns_of_a_branch_are_counted() -> None:
    conversations, asked = Conversations(), ModelRequest("m", (Message("user", "hi"),))
    for call, parent in (("a", None), ("b", "a"), ("c", "b"), ("d", "a"), ("e", None)):
        conversations.begin(call, asked, parent)
    assert {held.call_id: held.turns for held in conversations.newest_first()} == {"c": 2, "d": 1, "e": 0}


def test_prefixes_of_requests_that_begin_anew_are_forgotten_and_whole_requests_are_not() -> None:
    seen = SeenPrefixes(begun=2)
    assert not seen
    for turn in range(4):
        seen.add_request([f"{turn}.{message}" for message in range(3)], 0)
    assert [prefix in seen for prefix in ("0.0", "0.1", "0.2")] == [False, False, True]
    assert all(f"{turn}.{message}" in seen for turn in (2, 3) for message in range(3))
    assert seen


def test_what_continues_an_earlier_request_is_kept() -> None:
    seen = SeenPrefixes(begun=1)
    seen.add_request(["a"], 0)
    seen.add_request(["a", "b", "c"], 1)
    for turn in range(3):
        seen.add_request([f"{turn}", f"{turn}.1"], 0)
    assert all(prefix in seen for prefix in ("a", "b", "c"))
