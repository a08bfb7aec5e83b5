"""Gets items, and scores of answers, from reasoning-gym. Runs as a process of its own and is never imported:
see `reasoning`.

The job is on stdin: `{"ask": {family: [seed]}}` or `{"score": {"family", "seed", "question", "answer"}}`. The
reply is the last line on the descriptor that was standard output; what the package prints goes to standard
error.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from typing import Any

_CPU_S = 120
_MEMORY_BYTES = 8 << 30


def main() -> None:
    """Reads a job from stdin and writes the reply."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.read())
    gym = importlib.import_module("reasoning_gym")
    if "ask" in job:
        reply: Any = {
            family: [_item(gym, family, seed) for seed in seeds] for family, seeds in job["ask"].items()
        }
    else:
        reply = _score(gym, **job["score"])
    out.write("\n" + json.dumps(reply) + "\n")
    out.flush()


def _item(gym: Any, family: str, seed: int) -> dict[str, Any]:
    """A question, the generator's answer, and the score that the family gives that answer."""
    items = gym.create_dataset(family, seed=seed, size=1)
    item = items[0]
    answer = item["answer"].strip()
    return {
        "seed": seed,
        "question": item["question"],
        "answer": answer,
        "score": float(items.score_answer(answer, item)),
    }


def _score(gym: Any, family: str, seed: int, question: str, answer: str) -> dict[str, Any]:
    items = gym.create_dataset(family, seed=seed, size=1)
    item = items[0]
    if item["question"] != question:
        return {"other": item["question"][:500]}
    try:
        return {"score": items.score_answer(answer, item)}
    except Exception as error:  # noqa: BLE001  # reported to the parent process
        return {"raised": f"{type(error).__name__}: {str(error)[:500]}"}


if __name__ == "__main__":
    main()
