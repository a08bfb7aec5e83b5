"""A first agent of your own, on the official openai SDK: a shell, an editor, and a loop. Copy it.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python shell_agent.py [INSTRUCTION]

It works in the current directory, on what `instruction.txt` asks there. It knows nothing about being trained.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from openai import OpenAI

SYSTEM_PROMPT = "You are a careful engineer. Do the task with your tools; when it is done and checked, say so without a tool."
MAX_TURNS, COMMAND_S, SHOWN = 50, 120, 10_000


def shell(command: str) -> str:
    """Run a command with sh in the working directory."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    ran = subprocess.run(["sh", "-c", command], **pipes, timeout=COMMAND_S, check=False)
    said = ran.stdout
    cut = said if len(said) <= SHOWN else f"{said[: SHOWN // 2]}\n[...]\n{said[-SHOWN // 2 :]}"
    return f"{cut}\n[exit code {ran.returncode}]"


def edit(path: str, old: str, new: str) -> str:
    """Replace the one place in a file where a text stands; an empty `old` makes a new file."""
    text = Path(path).read_text() if old else ""
    if old and text.count(old) != 1:
        return f"error: the text stands {text.count(old)} times in {path}"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text.replace(old, new) if old else new)
    return f"wrote {path}"


TOOLS = {"shell": (shell, ("command",)), "edit": (edit, ("path", "old", "new"))}
SPECS = []
for name, (function, needed) in TOOLS.items():
    parameters = {
        "type": "object",
        "properties": {each: {"type": "string"} for each in needed},
        "required": needed,
    }
    SPECS.append(
        {
            "type": "function",
            "function": {"name": name, "description": function.__doc__, "parameters": parameters},
        }
    )


def call_tool(name: str, arguments: str) -> str:
    """What the tool says. Whatever goes wrong is for the model to read."""
    try:
        return TOOLS[name][0](**json.loads(arguments))
    except Exception as error:  # noqa: BLE001
        return f"error: {type(error).__name__}: {error}"


if __name__ == "__main__":
    instruction = sys.argv[1] if len(sys.argv) > 1 else Path("instruction.txt").read_text()
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": instruction}]
    client, model = OpenAI(), os.environ.get("OPENAI_MODEL", "policy")
    for _ in range(MAX_TURNS):
        message = (
            client.chat.completions.create(model=model, messages=messages, tools=SPECS).choices[0].message
        )
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        if not message.tool_calls:
            print(message.content)
            break
        for call in message.tool_calls:
            said = call_tool(call.function.name, call.function.arguments)
            print(f"{call.function.name}({call.function.arguments})\n{said}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
