"""A deep agent with a sub-agent: the main agent delegates with its `task` tool, both have a shell and files.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python deepagents_research.py [--api chat|responses] < TASK

Works in the current folder. It knows nothing about being trained.
"""

import argparse
import os
import sys

from deepagents import SubAgent, create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI

RESEARCHER = SubAgent(
    name="researcher",
    description="Finds things out. Give it one question.",
    system_prompt="You find things out with your tools. Answer the question you are given.",
)


def main() -> None:
    """Read the task, run the agents, print the answer."""
    parser = argparse.ArgumentParser(description="An agent and its sub-agent do the task on standard input.")
    parser.add_argument("--api", choices=("chat", "responses"), default="chat")
    options = parser.parse_args()
    model = ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "policy"), use_responses_api=options.api == "responses"
    )
    backend = LocalShellBackend(root_dir=".", virtual_mode=False, inherit_env=True)
    agent = create_deep_agent(
        model=model, system_prompt="Do the task.", subagents=[RESEARCHER], backend=backend
    )
    state = agent.invoke({"messages": [{"role": "user", "content": sys.stdin.read()}]})
    print(state["messages"][-1].content)


if __name__ == "__main__":
    main()
