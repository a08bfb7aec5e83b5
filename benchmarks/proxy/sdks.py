"""One session of a provider's own client: what agents are built with.

    echo '{"sdk": "openai", "url": "http://127.0.0.1:8100/s/KEY", "turns": 50}' | python -m benchmarks.proxy.sdks

Prints a line of JSON: the seconds of each turn, and the processor seconds of this process.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.proxy.answers import scripts

Sdk = Literal["openai", "anthropic"]
_SYSTEM = "You look things up and say what you find. " * 25


@dataclass(frozen=True, slots=True)
class SdkLoad:
    """What to do."""

    sdk: Sdk
    url: str
    """Base URL without `/v1`."""
    turns: int


@dataclass(frozen=True, slots=True)
class SdkResult:
    """What came of it."""

    latencies: list[float]
    """Seconds per turn."""
    cpu_s: float


def run_sdk(load: SdkLoad) -> SdkResult:
    """Run a load in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.proxy.sdks"]
    done = subprocess.run(argv, input=json.dumps(asdict(load)).encode(), stdout=subprocess.PIPE, check=True)
    return SdkResult(**json.loads(done.stdout))


def converse(load: SdkLoad) -> SdkResult:
    """A conversation. Raises `RuntimeError` for an answer that the engine did not give."""
    ask = _openai(load.url) if load.sdk == "openai" else _anthropic(load.url)
    known = {script.text for script in scripts()}
    messages = [{"role": "user", "content": "Find the first key and tell me what it holds."}]
    latencies = []
    before = time.process_time()
    for turn in range(load.turns):
        begun = time.perf_counter()
        text = ask(messages)
        latencies.append(time.perf_counter() - begun)
        if text not in known:
            raise RuntimeError(f"{load.url} gave another answer than the engine: {text[:300]!r}")
        line = f"Result {turn}: the file was read. Now find the next key and tell me what it holds."
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": line}]
    return SdkResult(latencies, time.process_time() - before)


def _openai(url: str) -> Callable[[list[dict[str, str]]], str]:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def ask(messages: list[dict[str, str]]) -> str:
        system = {"role": "system", "content": _SYSTEM}
        given: Any = [system, *messages]
        return client.chat.completions.create(model="policy", messages=given).choices[0].message.content or ""

    return ask


def _anthropic(url: str) -> Callable[[list[dict[str, str]]], str]:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def ask(messages: list[dict[str, str]]) -> str:
        given: Any = messages
        answer = client.messages.create(model="policy", max_tokens=512, system=_SYSTEM, messages=given)
        return "".join(block.text for block in answer.content if block.type == "text")

    return ask


if __name__ == "__main__":
    print(json.dumps(asdict(converse(SdkLoad(**json.loads(sys.stdin.read()))))))
