"""A scripted policy that plays a harness's part: it reads the prompt as a model would, and answers in the
family's markup: by hand in hermes, as the chat template has it in other grammars.

It is a function of the prompt alone. Which part to play is told by the first user turn that names one
(`[[main]]`), how far the part has come by its own turns since; a summary of the part says it itself
(`[[main]] [[done 2]]`), so that a conversation goes on after the harness has compacted it.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessgym.message import Message, Sampling, ToolCall
from harnessgym.tokens import TokenIds
from proxies.renderers.template import TemplateRenderer
from tests.suites.harnesses.line import WORD

_TURN = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_CALL_TAGS = ("<tool_call>", "[TOOL_CALLS]", "<|tool_call_start|>")
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_PART = re.compile(r"\[\[(\w+)\]\]")
_DONE = re.compile(r"\[\[done (\d+)\]\]")
_TOOL = re.compile(r'^\{"type": "function", "function": (\{.*\})\}$', re.MULTILINE)
_SUMMARY = re.compile(
    r"summar(y|ize|ise) of (our|the|this) conversation|CONTEXT CHECKPOINT|state_snapshot|context checkpoint|"
    r"prompt for continuing|anchored summary|structured (context )?summary",
    re.IGNORECASE,
)
_UNREADABLE = re.compile(r"Tool call error")
"""What takes the place of an answer that a harness could not read and left out."""
_SPEAKER = re.compile(r"determine who should logically speak next")
"""A harness asks whether words alone were meant to end the run."""
_TAKEN = re.compile(r"Got it\. Thanks for the additional context!")
"""What a harness lets the policy say to a summary."""
_ASIDE = re.compile(r"\AYou are now acting as the managed memory")
"""Housekeeping that has tools of its own."""


@dataclass(frozen=True, slots=True)
class Use:
    """One call of a tool that the harness offers."""

    tools: tuple[str, ...]
    """Names under which harnesses may offer it; the first that is offered is called."""
    arguments: Mapping[str, Any]
    """`{found}` in a text stands for what `find` finds last in the prompt."""
    find: str = ""
    anyway: bool = False
    """Call the first name although it is not offered."""


@dataclass(frozen=True, slots=True)
class Move:
    """One answer: what is thought, said and called."""

    text: str = ""
    uses: tuple[Use, ...] = ()
    thought: str = "I should go on with the task."
    broken: str = ""
    """Markup of a tool call that does not parse, written before the calls that do."""


Part = Sequence[Move]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the rendered conversation."""

    role: str
    text: str

    @property
    def asks(self) -> bool:
        """Whether a person, or a harness in a person's place, speaks."""
        return self.role == "user" and not self.text.startswith("<tool_response>")

    @property
    def empty(self) -> bool:
        """Whether the policy did nothing here: its answer broke off on the line, or a harness put words
        into its mouth.
        """
        if self.role != "assistant" or any(tag in self.text for tag in _CALL_TAGS):
            return False
        said = _THOUGHT.sub("", self.text)
        return not said.strip() or WORD in said or _TAKEN.search(said) is not None


@dataclass
class Actor:
    """Plays `parts` by name."""

    renderer: TemplateRenderer
    parts: Mapping[str, Part]
    hermes: bool = True
    """Whether the policy writes calls in hermes."""
    offered: dict[str, set[str]] = field(default_factory=dict)
    """Tools seen, by part."""
    problems: list[str] = field(default_factory=list)
    """Moves that could not be made."""
    summaries: int = 0
    """Summaries written."""
    others: int = 0
    """Answers to calls of no part: titles, classifiers."""

    def __call__(self, prompt: TokenIds, sampling: Sampling) -> list[int]:
        """The answer's tokens. A prompt that ends inside an answer gets the rest of that answer."""
        text = self.renderer.decode(prompt)
        head, mark, begun = text.rpartition("<|im_start|>assistant\n")
        tokens = self._encode(self._answer(head + mark) + "<|im_end|>")
        done = len(self._encode(begun)) if begun else 0
        assert self.renderer.decode(tokens[:done]) == begun
        return tokens[done:]

    def _encode(self, text: str) -> list[int]:
        return list(self.renderer.tokenizer.encode(text, add_special_tokens=False).ids)

    def _answer(self, text: str) -> str:
        turns = [Turn(role, said) for role, said in _TURN.findall(text)][:-1]
        asked = next((turn.text for turn in reversed(turns) if turn.asks), "")
        name = _part(turns)
        step = _step(turns)
        if _SUMMARY.search(asked) or _SUMMARY.search(turns[0].text[:4_000] if turns else ""):
            self.summaries += 1
            name = name or "main"
            said = [at + 1 for at, move in enumerate(self.parts[name]) if move.text and move.text in asked]
            return _say(
                Move(
                    f"<summary>\n[[{name}]] [[done {max([step, *said])}]] The task is under way.\n</summary>"
                )
            )
        if _SPEAKER.search(asked):
            self.others += 1
            speaker = "model" if step < len(self.parts.get(name or "main", ())) else "user"
            return _say(Move(json.dumps({"reasoning": "That is what I meant.", "next_speaker": speaker})))
        offered = {json.loads(tool)["name"] for tool in _TOOL.findall(turns[0].text)} if turns else set[str]()
        if name is None or name not in self.parts or not offered or _ASIDE.search(turns[0].text):
            self.others += 1
            return _say(Move("Nothing to add."))
        self.offered.setdefault(name, set()).update(offered)
        part = self.parts[name]
        if step >= len(part):
            return _say(Move("It is done."))
        calls = [self._call(use, offered, text) for use in part[step].uses]
        return _say(part[step], calls) if self.hermes or not calls else self._write(part[step], calls)

    def _write(self, move: Move, calls: Sequence[Mapping[str, Any]]) -> str:
        """A move with calls, as the template writes it."""
        assert not move.broken
        made = tuple(
            ToolCall(f"call_{place}", call["name"], json.dumps(call["arguments"]))
            for place, call in enumerate(calls)
        )
        asked = [Message("user", "a")]
        turn = Message("assistant", move.text, reasoning=move.thought, tool_calls=made)
        whole = self.renderer.text([*asked, turn], generate=False)
        return whole.removeprefix(self.renderer.text(asked)).rpartition("<|im_end|>")[0]

    def _call(self, use: Use, offered: set[str], text: str) -> dict[str, Any]:
        name = next((name for name in use.tools if name in offered), None)
        if use.anyway:
            name = use.tools[0]
        if name is None:
            self.problems.append(f"None of {use.tools} is offered; there are {sorted(offered)}.")
            name = use.tools[0]
        found = ""
        if use.find:
            matches = re.findall(use.find, text)
            found = matches[-1] if matches else ""
            if not matches:
                self.problems.append(f"{use.find!r} is not in the prompt of {name}.")
        return {"name": name, "arguments": _filled(dict(use.arguments), found)}


def _part(turns: Sequence[Turn]) -> str | None:
    """The part that the first user turn to name one names; where only a summary is left, the part it
    names.
    """
    asking = [turn.text for turn in turns if turn.asks]
    summaries = [turn.text for turn in turns if _DONE.search(turn.text)]
    return next((found[1] for text in [*asking, *summaries] if (found := _PART.search(text))), None)


def _step(turns: Sequence[Turn]) -> int:
    """Own turns so far, those before a summary as the summary counts them, and those that were answered with
    an error alone.

    A turn of which only the beginning arrived counts for nothing. Where a harness keeps the answer that broke
    off and the next attempt's too, they count once.
    """
    done, since, broke_off = 0, 0, False
    for before, turn in itertools.pairwise([Turn("system", ""), *turns]):
        if counts := _DONE.findall(turn.text):
            done, since = int(counts[-1]), 0
        elif turn.empty or (broke_off and turn.role == "assistant" and WORD in turn.text):
            continue
        elif turn.role == "assistant" or (
            turn.asks and before.role != "assistant" and _UNREADABLE.match(turn.text)
        ):
            since += 1
            broke_off = broke_off or WORD in turn.text
    return done + since


def _say(move: Move, calls: Sequence[Mapping[str, Any]] = ()) -> str:
    parts = [move.text] if move.text else []
    parts += [f"<tool_call>\n{move.broken}\n</tool_call>"] if move.broken else []
    parts += [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    return f"<think>\n{move.thought}\n</think>\n\n" + "\n".join(parts)


def _filled(value: Any, found: str) -> Any:
    if isinstance(value, str):
        return value.replace("{found}", found)
    if isinstance(value, dict):
        return {name: _filled(item, found) for name, item in value.items()}
    return [_filled(item, found) for item in value] if isinstance(value, list) else value
