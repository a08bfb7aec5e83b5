"""The OpenAI Agents SDK with the tools that it runs itself: a shell, a local shell, a patch. Prints the answers
as one line of JSON, by case.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from agents import (
    Agent,
    ApplyPatchTool,
    LocalShellTool,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    apply_diff,
    set_tracing_disabled,
)
from agents.editor import ApplyPatchResult
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI


def run_shell(request):
    """Runs the commands of a shell call."""
    outputs = []
    for command in request.data.action.commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        outcome = ShellCallOutcome(type="exit", exit_code=done.returncode)
        outputs.append(
            ShellCommandOutput(command=command, stdout=done.stdout, stderr=done.stderr, outcome=outcome)
        )
    return ShellResult(output=outputs)


def run_local_shell(request):
    """Runs the command of a local shell call."""
    action = request.data.action
    env = {**os.environ, **action.env}
    return subprocess.run(action.command, env=env, capture_output=True, text=True, check=True).stdout


class Editor:
    """Writes the files of patches."""

    def create_file(self, operation):
        """A new file."""
        Path(operation.path).write_text(apply_diff("", operation.diff, mode="create"))
        return ApplyPatchResult(output=f"Created {operation.path}")

    def update_file(self, operation):
        """A changed file."""
        path = Path(operation.path)
        path.write_text(apply_diff(path.read_text(), operation.diff))
        return ApplyPatchResult(output=f"Updated {operation.path}")

    def delete_file(self, operation):
        """No file."""
        Path(operation.path).unlink()
        return ApplyPatchResult(output=f"Deleted {operation.path}")


TOOLS = {
    "shell": lambda: ShellTool(executor=run_shell),
    "local_shell": lambda: LocalShellTool(executor=run_local_shell),
    "apply_patch": lambda: ApplyPatchTool(editor=Editor()),
}


async def play(case):
    """One case. Its first word names the tool."""
    env = case["env"]
    client = AsyncOpenAI(base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], max_retries=0)
    model = OpenAIResponsesModel(model="policy", openai_client=client)
    agent = Agent("helper", instructions="You help.", model=model, tools=[TOOLS[case["name"].split()[0]]()])
    if not case["streams"]:
        return (await Runner.run(agent, case["prompt"])).final_output
    result = Runner.run_streamed(agent, case["prompt"])
    async for _event in result.stream_events():
        pass
    return result.final_output


async def main():
    """All cases."""
    set_tracing_disabled(True)
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({case["name"]: await play(case) for case in cases}))


asyncio.run(main())
