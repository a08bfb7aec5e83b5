"""pydantic-ai: one conversation with a tool per case. Prints the answers as one line of JSON, by case."""

import asyncio
import json
import os
import sys
from pathlib import Path

from pydantic_ai import Agent

MODELS = {
    "chat": "openai-chat:policy",
    "responses": "openai-responses:policy",
    "messages": "anthropic:policy",
    "gemini": "google:policy",
}


async def read(_, events):
    """Having a reader is what makes pydantic-ai stream; `run_stream` would end at the first text."""
    async for _event in events:
        pass


async def play(case):
    """One case."""
    os.environ.update(case["env"])
    agent = Agent(MODELS[case["protocol"]], instructions="You look things up.")

    @agent.tool_plain
    def find(key: str) -> str:
        """Find the value of a key."""
        return f"{key} is 47"

    result = await agent.run(case["prompt"], event_stream_handler=read if case["streams"] else None)
    return result.output


async def main():
    """All cases."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({case["name"]: await play(case) for case in cases}))


asyncio.run(main())
