"""A small agent on the official openai SDK: looks things up in a catalog and answers.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python lookup_openai.py [--instruction FILE | TEXT] [--stream]

Reads `catalog.json` in the working directory and writes `answer.txt` there. It knows nothing about being
trained.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletion

SYSTEM_PROMPT = "Use the tools, then give the value."
MAX_TURNS = 6
LONGEST_S = 10.0
"""No tool takes longer."""


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


def take_time(draw: random.Random, delay: str | None) -> None:
    """Sleep as long as a slow tool might take: lognormal, `MEDIAN:SIGMA` in seconds and standard deviation
    of the logarithm.
    """
    if delay:
        median, sigma = (float(number) for number in delay.split(":"))
        time.sleep(min(median * draw.lognormvariate(0, sigma), LONGEST_S))


def ask(client: OpenAI, messages: list[Any], stream: bool) -> dict[str, Any]:
    """The model's next message, as the dict that goes back into the history."""
    request: dict[str, Any] = {
        "model": os.environ.get("OPENAI_MODEL", "policy"),
        "messages": messages,
        "tools": TOOLS,
    }
    if not stream:
        answer: ChatCompletion = client.chat.completions.create(**request)
        return answer.choices[0].message.model_dump(
            include={"role", "content", "tool_calls"}, exclude_none=True
        )
    content, calls = "", dict[int, Any]()
    for chunk in client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(
                    part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["id"] += part.id or ""
                call["function"]["name"] += part.function.name or ""
                call["function"]["arguments"] += part.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return {**message, "tool_calls": [calls[index] for index in sorted(calls)]} if calls else message


def main() -> None:
    """The agent: ask, call tools, ask again, write the answer."""
    parser = argparse.ArgumentParser(description="Looks things up in catalog.json and writes answer.txt.")
    parser.add_argument("text", nargs="?", help="the instruction itself")
    parser.add_argument("--instruction", default="instruction.txt", help="file that holds the instruction")
    parser.add_argument("--stream", action="store_true", help="ask for streamed answers")
    parser.add_argument("--delay", help="seconds that a tool takes, lognormal: MEDIAN:SIGMA, as in 0.3:1")
    parser.add_argument("--seed", type=int, default=0, help="of the delays")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    instruction = options.text or Path(options.instruction).read_text()
    catalog = json.loads(Path("catalog.json").read_text())
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": instruction},
    ]
    message: dict[str, Any] = {}
    with OpenAI() as client:
        for _ in range(MAX_TURNS):
            message = ask(client, messages, options.stream)
            messages.append(message)
            if not message.get("tool_calls"):
                break
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                take_time(draw, options.delay)
                result = call_tool(catalog, name, arguments)
                print(f"{name}({arguments}) -> {result}")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    answer = (message.get("content") or "").strip()
    Path("answer.txt").write_text(answer)
    print(f"answer: {answer}")


if __name__ == "__main__":
    main()
