"""Real agents, unmodified, in a sandbox without a network, against the proxy and a scripted policy; asserted
from the store.

Agents mostly start, wait and retry, so a few run at a time, each on a stage of its own.
"""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from tests.suites.harnesses.observed import Observed, complaints
from tests.suites.harnesses.run import prepare, ready, run
from tests.suites.harnesses.scenarios import OTHER_GRAMMARS, SCENARIOS, Scenario

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap, pytest.mark.agents]
_AT_ONCE = 3


@pytest.fixture(scope="module")
async def runs(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, asyncio.Task[Observed]]]:
    """The runs of the tests that were chosen, by scenario; without those whose agent is not there and not
    required.
    """
    chosen = [item.callspec.params["scenario"] for item in request.session.items if request.path == item.path]  # type: ignore[attr-defined]
    if "agents" in os.environ.get("HARNESSGYM_REQUIRE", ""):
        for scenario in chosen:
            prepare(scenario)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(scenario: Scenario) -> Observed:
        async with turns:
            return await run(scenario)

    tasks = {scenario.name: asyncio.create_task(one(scenario)) for scenario in chosen if ready(scenario)}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *OTHER_GRAMMARS], ids=lambda scenario: scenario.name)
async def test_a_real_agent_is_recorded_whole(
    scenario: Scenario, runs: dict[str, asyncio.Task[Observed]]
) -> None:
    if scenario.name not in runs:
        pytest.skip("the agent is not installed; `python -m tests.suites.harnesses.run` installs all of them")
    seen = await runs[scenario.name]
    assert complaints(seen, scenario) == [], seen.output
