"""Google's Agent Development Kit. Prints the answers as one line of JSON, by case."""

import asyncio
import json
import os
import sys
from pathlib import Path

from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import types


def find(key: str) -> str:
    """Find the value of a key."""
    return f"{key} is 47"


async def play(case):
    """One case."""
    os.environ.update(case["env"])
    agent = Agent(
        name="helper", model=Gemini(model="policy"), instruction="You look things up.", tools=[find]
    )
    runner = InMemoryRunner(agent=agent, app_name="helper")
    session = await runner.session_service.create_session(app_name="helper", user_id="u")
    asked = types.Content(role="user", parts=[types.Part(text=case["prompt"])])
    mode = StreamingMode.SSE if case["streams"] else StreamingMode.NONE
    answer = ""
    async for event in runner.run_async(
        user_id="u", session_id=session.id, new_message=asked, run_config=RunConfig(streaming_mode=mode)
    ):
        if event.is_final_response() and event.content:
            answer = "".join(part.text or "" for part in event.content.parts if not part.thought)
    return answer


async def main():
    """All cases."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({case["name"]: await play(case) for case in cases}))


asyncio.run(main())
