"""A small agent on the official anthropic SDK: looks things up in a catalog and answers.

    ANTHROPIC_BASE_URL=... ANTHROPIC_API_KEY=... python lookup_anthropic.py [--instruction FILE | TEXT]
    [--stream]

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

from anthropic import Anthropic
from anthropic.types import ContentBlock, Message

SYSTEM_PROMPT = "Use the tools, then give the value."
MAX_TURNS = 6
LONGEST_S = 10.0
"""No tool takes longer."""
MAX_TOKENS = 256


def tool(name: str, description: str, argument: str) -> Any:
    """A tool with one string argument."""
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"name": name, "description": description, "input_schema": schema}


TOOLS = [
    tool("find", "Id of an item.", "name"),
    tool("price", "Price of an item.", "id"),
    tool("stock", "Stock of an item.", "id"),
    tool("weight", "Weight of an item.", "id"),
]


def call_tool(catalog: dict[str, Any], name: str, arguments: Any) -> str:
    """What the tool says; "unknown" for everything that is not a proper call."""
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


def ask(client: Anthropic, messages: list[Any], stream: bool) -> Message:
    """The model's next message."""
    request: dict[str, Any] = {
        "model": os.environ.get("ANTHROPIC_MODEL", "policy"),
        "max_tokens": MAX_TOKENS,
        "system": SYSTEM_PROMPT,
    }
    request |= {"messages": messages, "tools": TOOLS}
    if not stream:
        answer: Message = client.messages.create(**request)
        return answer
    with client.messages.stream(**request) as events:
        return events.get_final_message()


def as_history(block: ContentBlock) -> Any:
    """A content block of an answer, as it goes back into the history."""
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type == "tool_use":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
    return block.model_dump(exclude_none=True)


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
    messages: list[Any] = [{"role": "user", "content": instruction}]
    content: list[ContentBlock] = []
    with Anthropic() as client:
        for _ in range(MAX_TURNS):
            content = ask(client, messages, options.stream).content
            calls = [block for block in content if block.type == "tool_use"]
            if not calls:
                break
            results = []
            for call in calls:
                take_time(draw, options.delay)
                result = call_tool(catalog, call.name, call.input)
                print(f"{call.name}({json.dumps(call.input)}) -> {result}")
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
            messages.append({"role": "assistant", "content": [as_history(block) for block in content]})
            messages.append({"role": "user", "content": results})
    answer = "".join(block.text for block in content if block.type == "text").strip()
    Path("answer.txt").write_text(answer)
    print(f"answer: {answer}")


if __name__ == "__main__":
    main()
