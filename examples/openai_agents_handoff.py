"""Two agents of the OpenAI Agents SDK: a planner hands the task over to a coder, which has a shell.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python openai_agents_handoff.py [--api responses|chat] [--stream] <
    TASK

Works in the current folder. It knows nothing about being trained.
"""

import argparse
import asyncio
import os
import subprocess
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

PLANNER = "You plan. Hand every task over to the coder."
CODER = "You are a coder. Do the task with the shell, then say what you did."


@function_tool
def shell(command: str) -> str:
    """Run a shell command and return what it prints."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"


async def run(task: str, *, stream: bool) -> str:
    """The last agent's answer."""
    model = os.environ.get("OPENAI_MODEL", "policy")
    coder = Agent(name="coder", instructions=CODER, tools=[shell], model=model)
    planner = Agent(name="planner", instructions=PLANNER, handoffs=[coder], model=model)
    if not stream:
        return str((await Runner.run(planner, task)).final_output)
    result = Runner.run_streamed(planner, task)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


def main() -> None:
    """Read the task, run the agents, print the answer."""
    parser = argparse.ArgumentParser(description="A planner and a coder do the task on standard input.")
    parser.add_argument("--api", choices=("responses", "chat"), default="responses")
    parser.add_argument("--stream", action="store_true", help="ask for streamed answers")
    options = parser.parse_args()
    set_tracing_disabled(disabled=True)
    set_default_openai_api("responses" if options.api == "responses" else "chat_completions")
    print(asyncio.run(run(sys.stdin.read(), stream=options.stream)))


if __name__ == "__main__":
    main()
