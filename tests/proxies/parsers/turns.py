"""Turns of a family, parsed in chunks."""

from collections.abc import Sequence
from functools import cache

from harnessgym.message import Message, ToolCall
from proxies.dialect import ToolCallDelta
from proxies.language import ParsedDelta, Parser
from proxies.parsers.choice import ParserChoice, choose
from tests.proxies.parsers.families import TOOL, Family, renderer, tokenizer


def encode(family: Family, *pieces: str) -> list[int]:
    """Ids of pieces encoded apart, so that a tag cut in two is two runs of ordinary tokens."""
    ids = (tokenizer(family).encode(piece, add_special_tokens=False).ids for piece in pieces)
    return [token for run in ids for token in run]


@cache
def chosen_for(family: Family) -> ParserChoice:
    """The parser that is chosen for a family."""
    return choose(renderer(family), family.grammar, family.name)


def parser(family: Family, **options: object) -> Parser:
    """The parser of one turn."""
    chosen = chosen_for(family)
    made: Parser = chosen.kind(
        renderer(family).table,
        **{
            **chosen.options,
            "call_prefix": "call_x_",
            "stop_token_ids": renderer(family).stop_token_ids,
            "offered": (TOOL,),
            **options,
        },
    )
    return made


def parse(
    family: Family, ids: Sequence[int], cuts: Sequence[int] = (), **options: object
) -> tuple[list[ParsedDelta], Message, int, int]:
    """Merged deltas, the message, the pieces that did not parse and the tokens of the reasoning of a turn
    that is fed in chunks.
    """
    p, deltas, at = parser(family, **options), list[ParsedDelta](), 0
    for cut in [*sorted(cuts), len(ids)]:
        deltas += p.feed(ids[at:cut])
        at = max(at, cut)
    return merged([*deltas, *p.flush()]), p.finish(), p.unparsed, p.reasoning_tokens


def merged(deltas: Sequence[ParsedDelta]) -> list[ParsedDelta]:
    """The deltas with those of one kind that follow each other joined."""
    out: list[ParsedDelta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if last is None or isinstance(delta, ToolCallDelta) or isinstance(last, ToolCallDelta):
            out.append(delta)
        elif type(last) is type(delta):
            out[-1] = type(delta)(last.text + delta.text)
        else:
            out.append(delta)
    return out


def said(message: Message) -> tuple[str, str, list[tuple[str, object]]]:
    """Content, reasoning and calls, by value."""
    return message.content, message.reasoning, [(call.name, call.parsed) for call in message.tool_calls]


def written(family: Family, turn: Message) -> tuple[list[int], bool]:
    """The tokens that the template writes for a turn, up to its end, and whether the prompt began its
    reasoning.
    """
    ids = renderer(family).written_turn(turn)
    assert ids is not None
    ends = [at for at, token in enumerate(ids) if token in renderer(family).stop_token_ids]
    ids = ids[: ends[-1] + 1] if ends else ids
    prompt = renderer(family).encode(renderer(family).text([Message("user", "a")]))
    whole = renderer(family).encode(renderer(family).text([Message("user", "a"), turn], generate=False))
    chosen = chosen_for(family)
    return ids, whole[: len(prompt)] == prompt and chosen.in_reasoning


FIND = ToolCall(
    "call_x_0", "find", '{"name": "red lamp", "count": 3, "flag": true, "deep": {"of": [1, null]}}'
)
