"""SDKs and programs of other makers, unmodified, against the proxy and a scripted policy; asserted from the
store.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.suites.clients.cases import CLIENTS, Case, Client
from tests.suites.clients.conversations import Conversation, complaints, play
from tests.suites.clients.frameworks import FRAMEWORKS
from tests.suites.clients.report import FIGURES, PAGE, section
from tests.suites.harnesses.run import TOKENIZER_STEPS, prepared

pytestmark = pytest.mark.anyio
_AT_ONCE = 3
ALL = [
    pytest.param(
        client,
        case,
        id=f"{client.name} {case.name}",
        marks=[pytest.mark.agents, getattr(pytest.mark, client.needs)],
    )
    for client in CLIENTS
    for case in client.cases
]


@pytest.fixture(scope="module")
async def played(
    request: pytest.FixtureRequest,
) -> AsyncIterator[dict[str, asyncio.Task[list[Conversation]]]]:
    """The conversations of the clients whose tests were chosen and will run, by client; without those that are
    not there and not required.
    """
    chosen = {
        item.callspec.params["client"].name  # type: ignore[attr-defined]
        for item in request.session.items
        if request.path == item.path
        and item.get_closest_marker("agents")
        and not item.get_closest_marker("skip")
    }
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(client: Client) -> list[Conversation]:
        async with turns:
            return await play(client)

    tasks = {
        client.name: asyncio.create_task(one(client))
        for client in CLIENTS
        if client.name in chosen and prepared([*TOKENIZER_STEPS, *client.steps()])
    }
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize(("client", "case"), ALL)
async def test_a_real_client_is_answered_and_recorded_as_one_branch(
    client: Client, case: Case, played: dict[str, asyncio.Task[list[Conversation]]]
) -> None:
    if client.name not in played:
        pytest.skip(
            "the client is not installed; `python -m tests.suites.clients.cases` installs all of them"
        )
    seen = (await played[client.name])[client.cases.index(case)]
    assert complaints(seen, case) == [], seen


def test_the_page_shows_these_clients_at_these_versions() -> None:
    """After a change of a version or a case: `python -m tests.suites.clients.report`."""
    figures = json.loads(FIGURES.read_text())
    shown = {(each["client"], each["version"], each["case"], each["in_ci"]) for each in figures}
    expected = {
        (client.name, client.version, case.name, client in CLIENTS)
        for client in (*CLIENTS, *FRAMEWORKS)
        for case in client.cases
    }
    assert shown == expected
    assert section() in PAGE.read_text()


CASE = Case("plain", "chat", calls=3, side=1)
GOOD = Conversation(
    client="c", version="1", case="plain", protocols=["chat"], streamed=0, answer=CASE.answer, calls=3,
    statuses={"delivered": 2, "acknowledged": 1}, agents=1, kinds={"policy": 2, "side": 1},
    breaks={"sub_agent": 1}, rows=1, sampled=30, trained=20, excluded={"side_call": 10}, lost=0,
    wrong_context=0, incomplete=None,
)  # fmt: skip


def test_a_good_conversation_is_not_complained_about() -> None:
    assert complaints(GOOD, CASE) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocols": ["chat", "responses"]}, {"streamed": 1}, {"answer": "The tool did not tell."},
        {"statuses": {"delivered": 2, "open": 1}}, {"agents": 2}, {"kinds": {"policy": 3}}, {"breaks": {}},
        {"breaks": {"edited_history": 1}}, {"rows": 2}, {"trained": 19}, {"excluded": {"undelivered": 10}},
        {"lost": 1}, {"wrong_context": 1}, {"incomplete": "it is"},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_one_is(wrong: dict[str, Any]) -> None:
    assert complaints(replace(GOOD, **wrong), CASE)
