"""One process that writes calls: `python -m benchmarks.store.writer URL TASKS TURNS SEED ours|naive`.

Says `ready` when its conversations are made, starts at a line, and prints seconds, calls, CPU seconds and
stored tokens.
"""

import asyncio
import json
import sys
import time
from functools import partial
from typing import Any

from sqlalchemy import Column, Connection, MetaData, String, Table, Text, insert

from benchmarks.store.conversations import READ, SAMPLED, Conversation, Turn, begin, split
from harnessgym.store import TraceStore, calls
from proxies.reading import BodyReader, ReadBody, split_of

NAIVE = Table(
    "naive_calls", MetaData(), Column("id", String(24), primary_key=True), Column("row", Text, nullable=False)
)
"""What people write first: a row of JSON per call, with everything in it."""


async def ours(store: TraceStore, made: list[list[Turn]]) -> None:
    """Every call as the proxy stores it: the body read, its intent queued, its outcome awaited."""

    async def session(turns: list[Turn]) -> None:
        reader = BodyReader()
        for turn in turns:
            read = reader.read(turn.body)
            assert isinstance(read, ReadBody)
            body = split_of(read)
            intended = store.submit(
                partial(calls.intend, intent=turn.intent, segment=turn.prompt, body=body), wake=False
            )
            intended.add_done_callback(partial(read.stored, turn.intent.id))
            await store.awrite(partial(calls.finish, outcome=turn.outcome))

    await asyncio.gather(*(session(turns) for turns in made))


async def naive(store: TraceStore, made: list[list[Turn]]) -> None:
    """The same calls as rows of JSON, through the same grouped writer."""

    async def session(turns: list[Turn]) -> None:
        for turn in turns:
            row = naive_row(turn)
            await store.awrite(partial(_add_naive, row=row))

    await asyncio.gather(*(session(turns) for turns in made))


def naive_row(turn: Turn) -> dict[str, str]:
    """A call's row of JSON."""
    completion = turn.outcome.segment
    row = {
        "request": json.loads(turn.body), "prompt_ids": list(turn.prompt.ids), "ids": list(completion.ids),
        "logprobs": list(completion.logprobs or ()), "usage": turn.outcome.usage, "finish_reason": turn.outcome.finish_reason,
    }  # fmt: skip
    return {"id": turn.intent.id, "row": json.dumps(row)}


def _add_naive(conn: Connection, row: dict[str, str]) -> None:
    conn.execute(insert(NAIVE).values(row))


def write_one(store: TraceStore, conversation: Conversation, count: int) -> None:
    """A long conversation, turn by turn, none of it kept in memory."""
    for _ in range(count):
        turn = conversation.turn()
        intended = store.submit(
            partial(calls.intend, intent=turn.intent, segment=turn.prompt, body=split(turn))
        )
        store.write(partial(calls.finish, outcome=turn.outcome))
        turn.read.stored(turn.intent.id, intended)


def main() -> None:
    """Make, wait, write, report."""
    url, tasks, count, seed, way = sys.argv[1:]
    with TraceStore.open(url) as store:
        made = [
            [conversation.turn() for _ in range(int(count))]
            for conversation in begin(store, int(tasks), int(seed))
        ]
        print("ready", flush=True)
        sys.stdin.readline()
        began, spent = time.perf_counter(), time.process_time()
        asyncio.run({"ours": ours, "naive": naive}[way](store, made))
        figures: dict[str, Any] = {
            "seconds": time.perf_counter() - began,
            "cpu_s": time.process_time() - spent,
        }
    written = int(tasks) * int(count)
    print(json.dumps({**figures, "calls": written, "tokens": written * (READ + SAMPLED)}))


if __name__ == "__main__":
    main()
