"""Two agents on the official openai SDK: a scout looks things up, and a helper is asked where the scout is
unsure.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python lookup_pair.py [--instruction FILE]

Each asks the provider for a model of its own, by name (`SCOUT_MODEL`, `HELPER_MODEL`). Reads `catalog.json`
in the working directory and writes `answer.txt` there. It knows nothing about being trained, nor that there
may be more than one policy.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from openai import OpenAI

SCOUT = os.environ.get("SCOUT_MODEL", "scout")
HELPER = os.environ.get("HELPER_MODEL", "helper")
SYSTEM_PROMPT = "Use the tools, then give the value."
MAX_TURNS, CAREFUL_TURNS = 6, 2


def tool(name: str, description: str, argument: str) -> Any:
    """A tool with one string argument."""
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [
    tool("find", "Id of an item.", "name"),
    tool("price", "Price of an item.", "id"),
    tool("stock", "Stock of an item.", "id"),
    tool("weight", "Weight of an item.", "id"),
]


def call_tool(catalog: dict[str, Any], name: str, arguments: Any) -> str:
    """What the tool says; "unknown" for everything that is not a proper call."""
    try:
        arguments = json.loads(arguments)
    except ValueError:
        return "unknown"
    expected = "name" if name == "find" else "id"
    if (
        not isinstance(arguments, dict)
        or set(arguments) != {expected}
        or not isinstance(arguments[expected], str)
    ):
        return "unknown"
    if name == "find":
        return str(catalog["ids"].get(arguments["name"], "unknown"))
    return str(catalog["attributes"].get(arguments["id"], {}).get(name, "unknown"))


def look_up(
    client: OpenAI, model: str, instruction: str, catalog: dict[str, Any], tries: int = 1
) -> str | None:
    """What an agent answers; None if it is unsure: `tries` samples of one of its first turns call for
    different things.
    """
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": instruction},
    ]
    for turn in range(MAX_TURNS):
        reply = client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, n=tries if turn < CAREFUL_TURNS else 1
        )
        said = [
            choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            for choice in reply.choices
        ]
        if any(meaning(message) != meaning(said[0]) for message in said):
            return None
        message = said[0]
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = call_tool(catalog, call["function"]["name"], call["function"]["arguments"])
            print(f"{model}: {call['function']['name']}({call['function']['arguments']}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return (message.get("content") or "").strip()


def meaning(message: dict[str, Any]) -> list[Any]:
    """What a message calls for, or else says."""
    return [call["function"] for call in message.get("tool_calls", ())] or [
        (message.get("content") or "").strip()
    ]


def main() -> None:
    """The scout first; the helper begins anew."""
    parser = argparse.ArgumentParser(
        description="Two agents look things up in catalog.json and write answer.txt."
    )
    parser.add_argument("--instruction", default="instruction.txt", help="file that holds the instruction")
    options = parser.parse_args()
    instruction, catalog = Path(options.instruction).read_text(), json.loads(Path("catalog.json").read_text())
    with OpenAI() as client:
        answer = look_up(client, SCOUT, instruction, catalog, tries=2)
        if answer is None:
            print("The scout is unsure.")
            answer = look_up(client, HELPER, instruction, catalog) or ""
    Path("answer.txt").write_text(answer)
    print(f"answer: {answer}")


if __name__ == "__main__":
    main()
