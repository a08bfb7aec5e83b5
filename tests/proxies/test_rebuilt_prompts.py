"""A harness that rewrites its history: every prompt is exact, and only what is new is tokenised and stored."""

import json
from typing import Any

import pytest
from sqlalchemy import text, update

from harnessgym.store import bodies
from harnessgym.store.tables import segments
from harnessgym.tokens import PieceTokens
from harnessgym.traces.verification.verify import verify
from proxies.dialects.chat import Chat
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
TURNS = 8
ANSWERS = [f"I look at result {turn}.<|im_end|>" for turn in range(TURNS)]
PAGE = "The page has a button, a list of results and a text that goes on for a while. " * 12


async def converse(world: World, key: str, turns: range, messages: list[dict[str, Any]]) -> None:
    """Turns of a harness whose system text tells the time, and which shortens what it read before."""
    for turn in turns:
        clock = {"role": "system", "content": f"It is 9:{turn:02}. {PAGE}"}
        response = await world.chat(key, [clock, *messages])
        assert response.status_code == 200, response.text
        messages += [
            response.json()["choices"][0]["message"],
            {"role": "user", "content": f"Result {turn}: {PAGE}"},
        ]
        if turn == 4:
            messages[1] = {"role": "user", "content": "(shortened)"}


async def test_every_prompt_is_exact_and_what_repeats_is_stored_once(make_world: MakeWorld) -> None:
    async with make_world(*ANSWERS, max_length=20_000) as world:
        session = await world.open()
        messages = [{"role": "user", "content": f"Look it up. {PAGE}"}]
        await converse(world, session.key, range(TURNS), messages)
        recorded = world.calls(session)
        assert {world.break_of(call) for call in recorded[1:]} <= {"nonce", "edited_history"}
        for turn, call in enumerate(recorded):
            sent = world.language.renderer.render(*asked(world, call.id))
            assert world.prompt(session, call) == list(sent)
            assert f"It is 9:{turn:02}." in world.language.renderer.written(sent).decode()
        stored = world.store.read(
            lambda conn: conn.execute(
                text("SELECT length, length(ids), copies FROM segments WHERE kind = 'prompt'")
            ).all()
        )
        assert sum(row[1] for row in stored) < 0.4 * sum(2 * row[0] for row in stored)
        assert verify(world.store).kinds <= {"span_version"}  # no version is published here


def asked(world: World, call_id: str) -> tuple[Any, Any]:
    """The messages and tools of a stored request."""
    body = world.store.read(lambda conn: bodies.of_call(conn, call_id))
    assert body is not None
    request = Chat().parse(body, {})
    return [message.without_nonce() for message in request.messages], request.tools


async def test_a_session_that_is_loaded_again_goes_on(make_world: MakeWorld) -> None:
    async with make_world(*ANSWERS, max_length=20_000) as world:
        session = await world.open()
        messages = [{"role": "user", "content": f"Look it up. {PAGE}"}]
        await converse(world, session.key, range(3), messages)
        await world.stop()
        await world.start()
        await converse(world, session.key, range(3, TURNS), messages)
        for call in world.calls(session):
            assert world.prompt(session, call) == list(world.language.renderer.render(*asked(world, call.id)))
        assert verify(world.store).kinds <= {"span_version"}  # no version is published here


async def test_forged_copies_are_found(make_world: MakeWorld) -> None:
    async with make_world(*ANSWERS, max_length=20_000) as world:
        session = await world.open()
        messages = [{"role": "user", "content": f"Look it up. {PAGE}"}]
        await converse(world, session.key, range(3), messages)
        last = next(
            segment
            for segment in reversed(world.segments(session).values())
            if isinstance(segment.ids, PieceTokens)
        )
        query = text("SELECT copies FROM segments WHERE id = :id")
        copies = world.store.read(lambda conn: conn.execute(query, {"id": last.id}).scalar())
        assert copies
        (at, source, start, length), *others = json.loads(copies)
        for forged in (
            [at, source, start - 1, length],
            [at, "0" * 24, start, length],
            [at, last.id, start, length],
            [at, source, start, length - 1],
        ):
            world.store.write(
                lambda conn, forged=forged: conn.execute(  # type: ignore[misc]
                    update(segments).where(segments.c.id == last.id).values(copies=[forged, *others])
                )
            )
            assert verify(world.store).kinds & {"segment_hash", "segment_blob"}
