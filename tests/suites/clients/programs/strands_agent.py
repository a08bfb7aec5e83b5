"""Strands Agents, which always stream. Prints the answers as one line of JSON, by case."""

import json
import os
import sys
from pathlib import Path

from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel

MODELS = {
    "chat": lambda: OpenAIModel(model_id="policy"),
    "messages": lambda: AnthropicModel(model_id="policy", max_tokens=500),
}


@tool
def find(key: str) -> str:
    """Find the value of a key."""
    return f"{key} is 47"


def play(case):
    """One case."""
    os.environ.update(case["env"])
    agent = Agent(model=MODELS[case["protocol"]](), tools=[find], callback_handler=None)
    return str(agent(case["prompt"]))


print(json.dumps({case["name"]: play(case) for case in json.loads(Path(sys.argv[1]).read_text())}))
