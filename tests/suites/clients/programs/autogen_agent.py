"""AutoGen's assistant, with reflection on what its tool gave. Prints the answers as one line of JSON, by case."""

import asyncio
import json
import os
import sys
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown",
        "structured_output": False}  # fmt: skip


async def find(key: str) -> str:
    """Find the value of a key."""
    return f"{key} is 47"


async def play(case):
    """One case."""
    os.environ.update(case["env"])
    client = OpenAIChatCompletionClient(model="policy", model_info=INFO)
    agent = AssistantAgent(
        "helper", client, tools=[find], reflect_on_tool_use=True, model_client_stream=case["streams"]
    )
    result = await agent.run(task=case["prompt"])
    await client.close()
    return result.messages[-1].content


async def main():
    """All cases."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({case["name"]: await play(case) for case in cases}))


asyncio.run(main())
