"""A first agent of your own, on the official openai SDK: a shell, an editor, and a loop. Copy it.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python shell_agent.py [INSTRUCTION]

It works in the current directory, on what `instruction.txt` asks there. It knows nothing about being trained.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI

SYSTEM_PROMPT = "You are a careful engineer. Do the task with your tools; when it is done and checked, say so without a tool."
MAX_TURNS = 50
COMMAND_S = 120
SHOWN = 10_000


def shell(command: str) -> str:
    """Run a command with sh in the working directory."""
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, errors="replace", timeout=COMMAND_S, check=False
    )
    said = done.stdout + done.stderr
    cut = said if len(said) <= SHOWN else f"{said[: SHOWN // 2]}\n[...]\n{said[-SHOWN // 2 :]}"
    return f"{cut}\n[exit code {done.returncode}]"


def edit(path: str, old: str, new: str) -> str:
    """Replace the one place in a file where a text stands; an empty `old` makes a new file."""
    file = Path(path)
    if not old:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(new)
        return f"wrote {path}"
    text = file.read_text()
    if text.count(old) != 1:
        return f"error: the text stands {text.count(old)} times in {path}"
    file.write_text(text.replace(old, new))
    return f"edited {path}"


def tool(function: Any, *arguments: str) -> Any:
    """A function of ours as the model sees it: all its arguments are strings, and needed."""
    parameters = {"type": "object", "properties": {name: {"type": "string"} for name in arguments}, "required": [*arguments]}
    about = {"name": function.__name__, "description": function.__doc__, "parameters": parameters}
    return {"type": "function", "function": about}


TOOLS = {"shell": shell, "edit": edit}
SPECS = [tool(shell, "command"), tool(edit, "path", "old", "new")]


def call_tool(name: str, arguments: str) -> str:
    """What the tool says. Whatever goes wrong is for the model to read."""
    try:
        return TOOLS[name](**json.loads(arguments))
    except Exception as error:  # noqa: BLE001
        return f"error: {type(error).__name__}: {error}"


def main() -> None:
    """Ask, do, ask again."""
    instruction = sys.argv[1] if len(sys.argv) > 1 else Path("instruction.txt").read_text()
    messages: list[Any] = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": instruction}]
    with OpenAI() as client:
        for _ in range(MAX_TURNS):
            model = os.environ.get("OPENAI_MODEL", "policy")
            answer = client.chat.completions.create(model=model, messages=messages, tools=SPECS)
            message = answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            messages.append(message)
            if not message.get("tool_calls"):
                print(message.get("content", ""))
                return
            for call in message["tool_calls"]:
                said = call_tool(call["function"]["name"], call["function"]["arguments"])
                print(f"{call['function']['name']}({call['function']['arguments']})\n{said}")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})


if __name__ == "__main__":
    main()
