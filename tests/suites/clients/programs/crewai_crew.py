"""CrewAI: a crew of one. Prints the answers as one line of JSON, by case."""

import json
import os
import sys
from pathlib import Path

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("find")
def find(key: str) -> str:
    """Find the value of a key."""
    return f"{key} is 47"


def play(case):
    """One case."""
    env = case["env"]
    os.environ.update(env)
    llm = LLM(
        model="policy",
        provider="openai",
        base_url=env["OPENAI_BASE_URL"],
        api_key=env["OPENAI_API_KEY"],
        stream=case["streams"],
    )
    agent = Agent(role="helper", goal="Find values.", backstory="You look things up.", tools=[find], llm=llm)
    task = Task(description=case["prompt"], expected_output="The value.", agent=agent)
    return str(Crew(agents=[agent], tasks=[task]).kickoff())


print(json.dumps({case["name"]: play(case) for case in json.loads(Path(sys.argv[1]).read_text())}))
