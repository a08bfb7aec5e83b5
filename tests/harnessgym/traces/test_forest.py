"""The forest joins by token prefix alone, keeps every token once, and is the same when it is loaded again."""

import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import Message, ToolCall, chain_digests, context_digest
from harnessgym.store.calls import RecordedCall, Segment
from harnessgym.tokens import hash_ids
from harnessgym.traces.forest import Forest

CONTEXT = context_digest(())
TOKENS = st.lists(st.integers(0, 2), max_size=4)


@st.composite
def grown(draw: st.DrawFn) -> tuple[Forest, list[tuple[str, Segment, Segment, str]]]:
    """A forest of calls, each behind a random earlier completion or at the root: (call, prompt,
    completion, digest).
    """
    forest, calls = Forest("s"), list[tuple[str, Segment, Segment, str]]()
    for number in range(draw(st.integers(1, 12))):
        parent = (
            draw(st.none() | st.sampled_from([completion for _, _, completion, _ in calls]))
            if calls
            else None
        )
        prompt, _ = forest.add_prompt(draw(TOKENS), None if parent is None else parent.id)
        ids = draw(TOKENS)
        completion = forest.add_completion(f"c{number}", prompt.id, ids, [0.0] * len(ids), f"d{number}")
        calls.append((f"c{number}", prompt, completion, f"d{number}"))
    return forest, calls


@given(grown(), st.data())
def test_a_prompt_joins_the_longest_path_that_is_its_prefix(
    grown: tuple[Forest, list[tuple[str, Segment, Segment, str]]], data: st.DataObject
) -> None:
    forest, calls = grown
    base = data.draw(st.sampled_from([[], *(forest.ids(completion.id) for _, _, completion, _ in calls)]))
    ids = [*base, *data.draw(TOKENS)]
    paths = [forest.ids(completion.id) for _, _, completion, _ in calls if len(completion.ids)]
    longest = max((len(path) for path in paths if ids[: len(path)] == path), default=None)
    found = forest.find_prefix(ids)
    if longest is None:
        assert found is None
    else:
        assert found is not None
        assert forest.ids(found.segment_id) == ids[:longest]
        assert forest.length(found.segment_id) == longest
        assert forest.call_of(found.segment_id) == found.call_id


@given(grown())
def test_equal_prompts_share_a_segment_and_every_token_is_stored_once(
    grown: tuple[Forest, list[tuple[str, Segment, Segment, str]]],
) -> None:
    forest, calls = grown
    prompts = [segment for segment in forest.segments.values() if segment.kind == "prompt"]
    keys = [(segment.parent_id, segment.ids) for segment in prompts]
    assert len(set(keys)) == len(keys)
    for _, prompt, completion, _ in calls:
        assert forest.path(completion.id)[-2:] == [prompt, completion]
    assert {leaf.id for leaf in forest.leaves()} == {
        completion.id
        for _, _, completion, _ in calls
        if not any(prompt.parent_id == completion.id for _, prompt, _, _ in calls)
    }


@given(grown())
def test_a_loaded_forest_is_the_one_that_was_grown(
    grown: tuple[Forest, list[tuple[str, Segment, Segment, str]]],
) -> None:
    forest, calls = grown
    recorded = [
        _recorded(call_id, prompt, completion, digest) for call_id, prompt, completion, digest in calls
    ]
    again = Forest.load("s", forest.segments.values(), recorded)
    for _, _, completion, digest in calls:
        assert again.ids(completion.id) == forest.ids(completion.id)
        assert again.attach([digest]) == forest.attach([digest])
        assert again.find_prefix(forest.ids(completion.id)) == forest.find_prefix(forest.ids(completion.id))


def _recorded(call_id: str, prompt: Segment, completion: Segment, digest: str) -> RecordedCall:
    return RecordedCall(
        id=call_id, session_id="s", rollout_id="r", agent_id=None, ordinal=0, kind="policy", status="committed",
        parent_call_id=None, request_digest="", chain_digest="", answer_digest=digest, prompt_len=0,
        prompt_segment=prompt.id, completion_len=len(completion.ids), completion_segment=completion.id, version_spans=(),
        finish_reason="stop", protocol="chat", usage={}, policy_id=None,
    )  # fmt: skip


WORDS = st.sampled_from(["a", "b", " a "])


@given(st.data())
def test_a_request_gets_the_digests_that_it_would_get_alone(data: st.DataObject) -> None:
    """Requests of a session in any order, with answers of ours and foreign ones, against a forest that
    remembers no request.
    """
    forest, known = Forest("s"), list[tuple[str, Message, str]]()
    talks: list[tuple[Message, ...]] = [()]
    for number in range(data.draw(st.integers(1, 8))):
        talk = data.draw(st.sampled_from(talks))
        talk = talk[: data.draw(st.integers(0, len(talk)))] if data.draw(st.booleans()) else talk
        if data.draw(st.booleans()):
            talk = (*talk, Message("assistant", data.draw(WORDS)))
        request = (*talk, Message("user", data.draw(WORDS)))
        alone = Forest("s", _answers=forest._answers, _aliases=forest._aliases)
        chain = forest.chain(CONTEXT, request)
        assert chain == alone.chain(CONTEXT, request)
        answer = Message("assistant", data.draw(WORDS))
        digest = chain_digests(chain[-1], (answer,))[0]
        if digest not in forest._answers and all(digest != other for _, _, other in known):
            prompt, _ = forest.add_prompt([number], None)
            forest.add_completion(f"c{number}", prompt.id, [1], [0.0], digest)
            forest.add_replays(chain[-1], answer, digest)
            known.append((chain[-1], answer, digest))
        talks += [request, (*request, answer)]


def test_an_answer_is_recognised_as_clients_replay_it() -> None:
    forest = Forest("s")
    asked = (Message("user", "hi"),)
    answer = Message("assistant", " one \n", reasoning="because\n")
    chain = forest.chain(CONTEXT, asked)
    digest = chain_digests(chain[-1], (answer,))[0]
    prompt, _ = forest.add_prompt([1], None)
    forest.add_completion("c", prompt.id, [2], [0.0], digest)
    forest.add_replays(chain[-1], answer, digest)
    for replayed in (
        answer,
        Message("assistant", " one \n"),
        Message("assistant", "one"),
        replace(answer, reasoning="because"),
        Message("assistant", "<think>\nbecause\n</think>\n\none"),
        Message("assistant", "<think>because</think> one \n"),
    ):
        request = (*asked, replayed, Message("user", "more"))
        found = forest.attach(forest.chain(CONTEXT, request))
        assert found is not None
        assert (found.call_id, found.matched) == ("c", 2)
    for edited in (
        Message("assistant", "two"),
        replace(answer, reasoning="for no reason"),
        Message("assistant", "<think>for no reason</think>one"),
        Message("assistant", "<think>because one"),
        Message("assistant", "one", tool_calls=(ToolCall("c", "f", "{}"),)),
        Message("user", "one"),
    ):
        assert forest.attach(forest.chain(CONTEXT, (*asked, edited))) is None


def test_an_answer_whose_text_looks_like_reasoning_is_recognised_without_its_own() -> None:
    forest = Forest("s")
    chain = forest.chain(CONTEXT, (Message("user", "hi"),))
    answer = Message("assistant", "<think>two</think>three", reasoning="one")
    digest = chain_digests(chain[-1], (answer,))[0]
    prompt, _ = forest.add_prompt([1], None)
    forest.add_completion("c", prompt.id, [2], [0.0], digest)
    forest.add_replays(chain[-1], answer, digest)
    for replayed in (answer, replace(answer, reasoning="")):
        found = forest.attach(
            forest.chain(CONTEXT, (Message("user", "hi"), replayed, Message("user", "more")))
        )
        assert found is not None
        assert found.matched == 2


def test_calls_are_recognised_however_they_are_written() -> None:
    forest = Forest("s")
    chain = forest.chain(CONTEXT, (Message("user", "hi"),))
    calls = (ToolCall("call_0", "f", '{ "x": 1.0, "y": [true, null] }'), ToolCall("call_1", "g", "{}"))
    answer = Message("assistant", "", "hm", calls)
    digest = chain_digests(chain[-1], (answer,))[0]
    prompt, _ = forest.add_prompt([1], None)
    forest.add_completion("c", prompt.id, [2], [0.0], digest)
    forest.add_replays(chain[-1], answer, digest)

    def matched(*replayed: ToolCall) -> bool:
        request = (
            Message("user", "hi"),
            Message("assistant", "", "", replayed),
            Message("tool", "1", tool_call_id=replayed[0].id),
        )
        return forest.attach(forest.chain(CONTEXT, request)) is not None

    assert matched(ToolCall("a", "f", '{"y":[true,null],"x":1}'), ToolCall("b", "g", ""))
    assert not matched(ToolCall("a", "f", '{"y":[true,null],"x":2}'), ToolCall("b", "g", "{}"))
    assert not matched(ToolCall("b", "g", "{}"), ToolCall("a", "f", '{"y":[true,null],"x":1}'))
    assert not matched(ToolCall("a", "f", '{"y":[true,null],"x":1}'))


def test_a_long_conversation_costs_what_it_adds() -> None:
    forest, parent, begun = Forest("s"), None, time.perf_counter()
    for turn in range(3_000):
        prompt, new = forest.add_prompt([turn, 1, 2], parent)
        assert new
        parent = forest.add_completion(f"c{turn}", prompt.id, [3, 4], [0.0, 0.0], f"d{turn}").id
    assert time.perf_counter() - begun < 3
    assert parent is not None
    ids = forest.ids(parent)
    assert len(ids) == forest.length(parent) == 15_000
    found = forest.find_prefix([*ids, 9])
    assert found is not None
    assert found.segment_id == parent
    assert hash_ids(ids) == hash_ids(tuple(ids))
