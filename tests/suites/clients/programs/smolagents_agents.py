"""smolagents: an agent that calls tools and one that writes code. Prints the answers as one line of JSON, by case."""

import json
import os
import sys
from pathlib import Path

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def find(key: str) -> str:
    """Find the value of a key.

    Args:
        key: The key.
    """
    return f"{key} is 47"


def play(case):
    """One case."""
    os.environ.update(case["env"])
    model = OpenAIServerModel("policy")
    kind = CodeAgent if case["name"].startswith("code") else ToolCallingAgent
    return str(kind(tools=[find], model=model, verbosity_level=0).run(case["prompt"]))


print(json.dumps({case["name"]: play(case) for case in json.loads(Path(sys.argv[1]).read_text())}))
