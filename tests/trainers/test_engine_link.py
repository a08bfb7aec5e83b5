import asyncio
import io
import socket

import pytest

from trainers.engine.link import Abort, Chunks, Ready, SubmitRefused, SubmitSequence, pack, read, receive
from trainers.engine.sequence import Chunk, SequenceSampling, TokenScore

TO_CORE = [
    Ready(),
    SubmitSequence(
        0,
        b"\1\0\0\0",
        SequenceSampling(5, stop=("a",), stop_token_ids=frozenset({3}), seed=1 << 70),
        "salt",
        True,
    ),
    Abort(1 << 40),
]
SCORES = [TokenScore(3, -0.5, 1, {3: -0.5, 4: -2.0})]
TO_FRONT = [
    Chunks(
        [
            (0, Chunk([1, 2], [-0.25, float("-inf")], 7)),
            (5, Chunk([], [], 0, [{1: -1.0}], SCORES, "stop", "a", 12)),
        ]
    ),
    SubmitRefused(3, "The engine has been closed. Restart it."),
]


def test_messages_arrive_as_they_were_sent_and_in_order():
    stream = io.BytesIO(b"".join(pack(message) for message in TO_CORE))
    assert [read(stream) for _ in TO_CORE] == TO_CORE
    with pytest.raises(EOFError):
        read(stream)


async def received(data):
    """What the front receives of bytes that come one by one, until the other end is closed."""
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=near)
    messages = []

    async def trickle():
        for byte in data:
            far.send(bytes([byte]))
            await asyncio.sleep(0)
        far.close()

    trickling = asyncio.create_task(trickle())
    try:
        while True:
            messages.append(await receive(reader))
    except EOFError:
        return messages
    finally:
        await trickling
        writer.close()


def test_the_front_puts_messages_together_from_pieces():
    assert asyncio.run(received(b"".join(pack(message) for message in TO_FRONT))) == TO_FRONT


@pytest.mark.parametrize("cut", [2, 4, 10, -1])
def test_a_message_that_breaks_off_is_the_end(cut):
    assert asyncio.run(received(pack(TO_FRONT[1]) + pack(TO_FRONT[0])[:cut])) == [TO_FRONT[1]]
    with pytest.raises(EOFError):
        read(io.BytesIO(pack(TO_CORE[1])[:cut]))
