"""Lookup episodes played in process, many at once through one KV cache: what a harness, the proxy and an
engine do together.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.recipe.chat import Chat
from environments.lookup.protocol import CATALOG_FILE, MAX_TURNS, SYSTEM_PROMPT, TOOLS, Catalog
from harnessgym.task import Task
from trainers.policies.kv_cache import KVCache
from trainers.policies.native import NativePolicy

CALL_START, CALL_END = "<tool_call>\n", "\n</tool_call>"
_MAX_NEW = 40
_MAX_LENGTH = 512


@dataclass(slots=True)
class Episode:
    """One play of a task: all tokens in order, which were sampled, and what it earned."""

    task: Task
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    turn_starts: list[int] = field(default_factory=list)
    answer: str | None = None

    @property
    def reward(self) -> float:
        """1.0 for the right answer, else 0.0."""
        return float(self.answer is not None and self.answer.strip() == self.task.metadata["answer"])

    def show(self, ids: Sequence[int]) -> None:
        """Append tokens the policy did not sample."""
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def say(self, token: int, logprob: float) -> None:
        """Append a sampled token."""
        self.ids.append(token)
        self.mask.append(1)
        self.logprobs.append(logprob)


def play(
    policy: NativePolicy, chat: Chat, tasks: Sequence[Task], temperature: float, generator: torch.Generator
) -> list[Episode]:
    """Play every task once; temperature 0 is greedy (logprobs are then those at temperature 1)."""
    episodes = []
    for task in tasks:
        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": task.instruction},
        ]
        episodes.append(Episode(task, [], [], []))
        episodes[-1].show(chat.encode(chat.text(messages, TOOLS, generate=True)))
    cache, held = KVCache(policy.config, len(tasks), _MAX_LENGTH), [0] * len(tasks)
    active = list(range(len(tasks)))
    for turn in range(MAX_TURNS):
        for row in active:
            episodes[row].turn_starts.append(len(episodes[row].ids))
        _sample_turn(policy, chat, episodes, active, held, cache, temperature, generator)
        for row in active:
            _answer_turn(chat, episodes[row], last=turn == MAX_TURNS - 1)
        active = [row for row in active if episodes[row].answer is None]
        if not active:
            break
    return episodes


def _sample_turn(
    policy: NativePolicy,
    chat: Chat,
    episodes: Sequence[Episode],
    active: Sequence[int],
    held: list[int],
    cache: KVCache,
    temperature: float,
    generator: torch.Generator,
) -> None:
    """Extend each active episode until it samples the end token or has `_MAX_NEW` new ones; `held` counts
    cached tokens.
    """
    speaking, spoken = list(active), 0
    while speaking:
        pending = [episodes[row].ids[held[row] :] for row in speaking]
        longest = max(map(len, pending))
        ids_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids in pending])
        index = torch.tensor(speaking)
        hidden = policy.forward_cached(ids_BT, torch.tensor([held[row] for row in speaking]), cache, index)
        last = hidden[torch.arange(len(speaking)), torch.tensor([len(ids) - 1 for ids in pending])]
        tokens, logprobs = sample(policy.logits(last), temperature, generator)
        spoken += 1
        for row, ids, token, logprob in zip(
            speaking, pending, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            held[row] += len(ids)
            episodes[row].say(token, logprob)
        speaking = [row for row in speaking if episodes[row].ids[-1] != chat.end] if spoken < _MAX_NEW else []


@torch.inference_mode()
def sample(logits_BV: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A token per row and its logprob, [B] each, from the untruncated distribution (Gumbel-max; greedy at
    temperature 0).
    """
    logprobs = torch.log_softmax(logits_BV.float() / (temperature or 1.0), dim=-1)
    noise = torch.rand(logprobs.shape, generator=generator).log().neg().log().neg() if temperature else 0.0
    tokens = (logprobs + noise).argmax(dim=-1)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


def _answer_turn(chat: Chat, episode: Episode, *, last: bool) -> None:
    """Run the tool calls of the turn just sampled and show their results, or close the episode with its
    text.
    """
    sampled = episode.ids[episode.turn_starts[-1] :]
    content, calls = parse_turn(chat.decode(sampled[:-1] if sampled[-1] == chat.end else sampled))
    if last or not calls or sampled[-1] != chat.end or len(episode.ids) > _MAX_LENGTH - 100:
        episode.answer = content
        return
    catalog = Catalog.from_json(episode.task.files[CATALOG_FILE])
    results = [{"role": "tool", "content": catalog.call(name, arguments)} for name, arguments in calls]
    episode.show(chat.encode("\n" + chat.text(results, generate=True)))


def parse_turn(text: str) -> tuple[str, list[tuple[str, object]]]:
    """Text and tool calls (name, arguments) of an assistant turn; a call that does not parse stays text."""
    content, calls = "", []
    while CALL_START in text:
        before, _, rest = text.partition(CALL_START)
        body, closed, after = rest.partition(CALL_END)
        call = _parse_call(body) if closed else None
        if call is None:
            content += before + CALL_START
            text = rest
        else:
            content += before
            calls.append(call)
            text = after
    return (content + text).strip(), calls


def _parse_call(body: str) -> tuple[str, object] | None:
    try:
        call = json.loads(body)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return call["name"], call.get("arguments")
