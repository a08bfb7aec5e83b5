"""The changes of a run's rollouts for one client, read from a real store."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from harnessgym.errors import ConfigError
from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.rollout.event_stream import EventStream, as_events, parse_event_id, state_as_json
from harnessgym.store import TraceStore, clock, rollout_states, rollouts, tables
from harnessgym.store.rollouts import RolloutOutcome
from tests.harnessgym.store.recorded_runs import begin_run

pytestmark = pytest.mark.anyio
KINDS = ["submitted", "started", "ended"]


@pytest.fixture
def store(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        yield store


@pytest.fixture
def recording(store):
    return begin_run(store)


def fail(recording, rollout_id, max_attempts=3):
    """Fail an attempt and claim the next one. Returns its id; None if there is none."""
    outcome = RolloutOutcome(
        rollout_id, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
    )
    recording.store.write(lambda conn: rollouts.fail(conn, outcome, max_attempts))
    rows = recording.store.write(lambda conn: rollouts.claim(conn, recording.run_id, "node", 60.0, 1))
    return rows[0].id if rows else None


def stream(recording, rollout_ids=None, after=None, since=0.0):
    return EventStream(recording.store, recording.run_id, rollout_ids, after, since)


async def look(changes):
    """The rollout and kind of each new event."""
    return [(state.id, kind) for _, kind, state in await changes.look()]


@given(
    st.floats(0.0, 1e12),
    st.text("0123456789abcdef", min_size=24, max_size=24),
    st.sampled_from(KINDS),
)
@settings(max_examples=30)
def test_an_event_id_is_read_back_exactly(at, rollout_id, kind):
    assert parse_event_id(f"{at!r}:{rollout_id}:{kind}") == (at, rollout_id, kind)


@pytest.mark.parametrize(
    "text", ["", "soon:a:ended", ":a:ended", "nan:a:ended", "inf:a:ended", "-inf:a:ended"]
)
def test_what_is_no_event_id_is_refused(text):
    with pytest.raises(
        ConfigError, match=r"is no event's id\. Give the `id` of an event as it came"
    ) as caught:
        parse_event_id(text)
    assert repr(text) in str(caught.value)


async def test_every_change_comes_once_with_the_present_state(recording):
    _, (rollout_id,) = recording.group(1)
    changes = stream(recording)
    assert await look(changes) == [(rollout_id, "submitted"), (rollout_id, "started")]
    assert await look(changes) == []
    recording.finish([rollout_id])
    ((event_id, kind, state),) = await changes.look()
    assert (kind, state.id, state.status, state.reward) == ("ended", rollout_id, "finished", 1.0)
    assert parse_event_id(event_id) == (state.ended_at, rollout_id, "ended")
    assert await look(changes) == []


async def test_a_stream_begins_at_a_time(recording):
    recording.group(1)
    since = recording.store.read(clock.read)
    changes = stream(recording, since=since)
    assert await look(changes) == []
    _, (later,) = recording.group(1)
    assert await look(changes) == [(later, "submitted"), (later, "started")]


async def test_a_clock_that_was_set_back_hides_nothing(recording):
    _, (early,) = recording.group(1)
    ahead = recording.store.read(clock.read) + 1_000.0
    times = update(tables.rollouts).values(created_at=ahead, started_at=ahead)
    recording.store.write(lambda conn: conn.execute(times))
    changes = stream(recording)
    assert await look(changes) == [(early, "submitted"), (early, "started")]
    _, (later,) = recording.group(1)
    assert await look(changes) == [(later, "submitted"), (later, "started")]
    recording.finish([later])
    assert await look(changes) == [(later, "ended")]
    assert await look(changes) == []


async def test_a_client_that_comes_back_gets_what_it_missed_and_nothing_twice(recording):
    _, ids = recording.group(3)
    recording.finish(ids[:2])
    events = await stream(recording).look()
    assert len(events) == 8
    for place, (event_id, _, _) in enumerate(events):
        again = await stream(recording, after=parse_event_id(event_id)).look()
        assert [event[0] for event in again] == [event[0] for event in events[place + 1 :]]


async def test_only_the_rollouts_that_are_watched_have_events(recording):
    _, (watched, _) = recording.group(2)
    changes = stream(recording, [watched])
    assert await look(changes) == [(watched, "submitted"), (watched, "started")]
    assert not changes.over
    recording.finish([watched])
    assert await look(changes) == [(watched, "ended")]
    assert changes.over


async def test_a_stream_of_a_whole_run_is_never_over(recording):
    _, ids = recording.group(2)
    changes = stream(recording)
    recording.finish(ids)
    assert len(await look(changes)) == 6
    assert not changes.over


async def test_a_stream_of_no_rollouts_is_over(recording):
    recording.group(1)
    changes = stream(recording, [])
    assert changes.over
    assert await look(changes) == []


async def test_the_next_attempts_of_a_watched_rollout_are_watched_too(recording):
    _, (first, _) = recording.group(2)
    changes = stream(recording, [first])
    await look(changes)
    second = fail(recording, first)
    assert await look(changes) == [(first, "ended"), (second, "submitted"), (second, "started")]
    assert not changes.over
    third = fail(recording, second)
    recording.finish([third])
    assert await look(changes) == [(second, "ended"), *((third, kind) for kind in KINDS)]
    assert changes.over


async def test_a_watch_that_begins_late_gets_all_attempts_from_the_first_on(recording):
    _, (first,) = recording.group(1)
    second = fail(recording, first)
    third = fail(recording, second)
    changes = stream(recording, [first])
    assert await look(changes) == [
        *((first, kind) for kind in KINDS),
        *((second, kind) for kind in KINDS),
        (third, "submitted"),
        (third, "started"),
    ]
    assert not changes.over


async def test_attempts_that_follow_each_other_between_two_looks_are_all_seen(recording):
    _, (first,) = recording.group(1)
    changes = stream(recording, [first])
    ((event_id, _, _), *_) = await changes.look()
    second = fail(recording, first)
    third = fail(recording, second)
    recording.finish([third])
    expected = [(first, "ended"), *((each, kind) for each in (second, third) for kind in KINDS)]
    assert await look(changes) == expected
    assert changes.over
    again = stream(recording, [first], parse_event_id(event_id))
    assert await look(again) == [(first, "started"), *expected]
    assert again.over


async def test_a_slot_that_is_given_up_ends_its_stream(recording):
    _, (rollout_id,) = recording.group(1)
    changes = stream(recording, [rollout_id])
    assert fail(recording, rollout_id, max_attempts=1) is None
    assert [kind for _, kind in await look(changes)] == KINDS
    assert changes.over


def test_a_state_as_json_says_its_reward_and_whether_it_is_final(recording):
    _, (finished, running) = recording.group(2)
    recording.finish([finished])
    states = recording.store.read(lambda conn: rollout_states.get(conn, [finished, running]))
    ended, open_ = (json.loads(json.dumps(state_as_json(state), allow_nan=False)) for state in states)
    assert (ended["id"], ended["status"], ended["stop_reason"]) == (finished, "finished", "finished")
    assert (ended["reward"], ended["rewards"], ended["final"]) == (1.0, {"reward": 1.0}, True)
    assert (open_["id"], open_["reward"], open_["final"], open_["ended_at"]) == (running, None, False, None)


async def texts_of(changes, keep_alive_s=math.inf, stopping=lambda: False, limit=100):
    texts = []
    events = as_events(changes, keep_alive_s, stopping)
    async for text in events:
        texts.append(text)
        if len(texts) == limit:
            break
    await events.aclose()
    return texts


async def test_events_are_sent_until_no_more_can_come(recording):
    _, (rollout_id,) = recording.group(1)
    recording.finish([rollout_id])
    texts = await texts_of(stream(recording, [rollout_id]))
    assert len(texts) == 3
    for text, kind in zip(texts, KINDS, strict=True):
        event_id, event, data = text.removesuffix("\n\n").split("\n")
        assert event == f"event: {kind}"
        assert parse_event_id(event_id.removeprefix("id: "))[1:] == (rollout_id, kind)
        assert json.loads(data.removeprefix("data: "))["final"] is True


async def test_a_silent_stream_sends_comments(recording):
    _, (rollout_id,) = recording.group(1)
    changes = stream(recording, [rollout_id])
    await look(changes)
    assert await texts_of(changes, keep_alive_s=0.0, limit=2) == [": still here\n\n"] * 2


async def test_a_server_that_stops_sends_nothing_more(recording):
    recording.group(1)
    assert await texts_of(stream(recording), stopping=lambda: True) == []
