"""The orchestration trace schema of awesome-llm-mas-rl (`trace-schema/trace_schema.json`) and its validator.

`mas_schema.json` is written from the schema's description. The validator also requires unique event ids,
edges between existing events, and times in order that begin at 0 or later.
"""

import importlib
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from harnessgym.errors import TraceError
from harnessgym.traces.export import needed

PATH = Path(__file__).with_suffix(".json")
KINDS = (
    "orchestrator_decision", "spawn", "despawn", "message", "tool_call", "tool_result", "return", "aggregate",
    "human_intervention", "safety_event",
)  # fmt: skip


def check(document: dict[str, Any]) -> None:
    """Raise `TraceError` with the first problems of a document, or `ConfigError` if jsonschema is missing."""
    found = [f"{error.json_path}: {error.message}" for error in _validator().iter_errors(document)]
    if not found:
        ids = Counter(event["id"] for event in document["events"])
        found = [f"event id {name!r} is there {number} times" for name, number in ids.items() if number > 1]
        ends = ((edge[end], edge) for edge in document["edges"] for end in ("src", "dst"))
        found += [
            f"a {edge['type']} edge names event {name!r}, which is not there"
            for name, edge in ends
            if name not in ids
        ]
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise TraceError(f"Not an orchestration trace: {'; '.join(found[:3])}{more}.")


@cache
def _validator() -> Any:
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ModuleNotFoundError:
        raise needed("jsonschema", "mas") from None
    return jsonschema.Draft202012Validator(json.loads(PATH.read_text(encoding="utf-8")))
