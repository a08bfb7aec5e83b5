"""LlamaIndex's function agent. Prints the answers as one line of JSON, by case."""

import asyncio
import json
import os
import sys
from pathlib import Path

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def find(key: str) -> str:
    """Find the value of a key."""
    return f"{key} is 47"


async def play(case):
    """One case."""
    env = case["env"]
    os.environ.update(env)
    llm = OpenAILike(
        model="policy",
        api_base=env["OPENAI_BASE_URL"],
        api_key=env["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
    )
    agent = FunctionAgent(tools=[find], llm=llm, streaming=case["streams"], initial_tool_choice=None)
    return str(await agent.run(case["prompt"]))


async def main():
    """All cases."""
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({case["name"]: await play(case) for case in cases}))


asyncio.run(main())
