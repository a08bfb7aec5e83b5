"""A plain agent on Python's standard library: one tool, a shell, through chat completions.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python agent.py

It reads `instruction.txt` in the working directory. It ends when the model calls no tool, or after
`_TURNS` model calls.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_TURNS = 64
_COMMAND_S = 60
_SHOWN = 8_000
_SHELL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command in the working directory.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    body = {"model": os.environ.get("OPENAI_MODEL", "policy"), "messages": messages, "tools": [_SHELL]}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}
    # The proxy's own address.
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request) as response:  # noqa: S310
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return {key: message[key] for key in ("role", "content", "tool_calls") if message.get(key) is not None}


def shell(arguments: str) -> str:
    """Run the command in a tool call's arguments. Returns its output and exit code."""
    try:
        command = json.loads(arguments)["command"]
        done = subprocess.run(  # noqa: PLW1510
            ["sh", "-c", command], capture_output=True, text=True, timeout=_COMMAND_S, errors="replace"
        )
    except (ValueError, KeyError, TypeError, OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return f"{done.stdout}{done.stderr}"[-_SHOWN:] + f"\n[exit code {done.returncode}]"


def main() -> None:
    """Ask the model, run its tool calls, and repeat until it calls none."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": Path("instruction.txt").read_text()}]
    for _ in range(_TURNS):
        try:
            message = ask(messages)
        except urllib.error.URLError as error:
            sys.exit(f"The model does not answer: {error}")
        messages.append(message)
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            output = shell(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


if __name__ == "__main__":
    main()
