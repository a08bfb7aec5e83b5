"""LangGraph's ReAct agent on LangChain's models. Prints the answers as one line of JSON, by case."""

import json
import os
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODELS = {
    "chat": lambda: ChatOpenAI(model="policy"),
    "responses": lambda: ChatOpenAI(model="policy", use_responses_api=True),
    "messages": lambda: ChatAnthropic(model="policy", max_tokens=500),
}


@tool
def find(key: str) -> str:
    """Find the value of a key."""
    return f"{key} is 47"


def play(case):
    """One case."""
    os.environ.update(case["env"])
    agent = create_agent(MODELS[case["protocol"]](), [find])
    asked = {"messages": [{"role": "user", "content": case["prompt"]}]}
    if not case["streams"]:
        return agent.invoke(asked)["messages"][-1].text
    state = {}
    for mode, part in agent.stream(asked, stream_mode=["messages", "values"]):
        state = part if mode == "values" else state
    return state["messages"][-1].text


print(json.dumps({case["name"]: str(play(case)) for case in json.loads(Path(sys.argv[1]).read_text())}))
