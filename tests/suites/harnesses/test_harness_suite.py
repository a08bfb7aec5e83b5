"""Real agents, unmodified, in a sandbox without a network, against the proxy and a scripted policy; asserted from the store."""

import os

import pytest

from tests.suites.harnesses.observed import complaints
from tests.suites.harnesses.run import prepare, ready, run
from tests.suites.harnesses.scenarios import SCENARIOS, Scenario

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap, pytest.mark.agents]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_a_real_agent_is_recorded_whole(scenario: Scenario) -> None:
    if not ready(scenario):
        if "agents" not in os.environ.get("HARNESSGYM_REQUIRE", ""):
            pytest.skip("the agent is not installed; `python -m tests.suites.harnesses.run` installs all of them")
        prepare(scenario)
    seen = await run(scenario)
    assert complaints(seen, scenario) == [], seen.output
