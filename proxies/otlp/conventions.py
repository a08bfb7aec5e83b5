"""Reads what a span reports, by the conventions that agent frameworks follow.

Each line has values of `gen_ai.operation.name` (lower case) or of OpenInference's span kind (upper case), and
what they mean:

- chat, generate_content, text_completion; LLM: a model call.
- execute_tool; TOOL, RETRIEVER: a tool call and its result.
- invoke_agent, create_agent; AGENT: an agent's run, that is its spawn, and its return or its end by an error.
- a TOOL span named "handoff to X": a decision to hand over, and the handoff message.
- apply_guardrail; GUARDRAIL: a safety event.
- a tool span whose error says that the tool was refused: a safety event in addition to the tool call.
- a tool, step or span event named after a human's approval or input: a human intervention.
- an operation, span or span event named after a public event kind (`human_intervention`, `message`, ...):
  that event.
- anything else, EVALUATOR and CHAIN included: a step that contains other spans.

OpenTelemetry GenAI: https://opentelemetry.io/docs/specs/semconv/gen-ai/ . OpenInference:
https://arize-ai.github.io/openinference/spec/semantic_conventions.html . Traceloop's span kinds are
supported as well.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from harnessgym.message import canonical_json
from proxies.otlp.wire import Moment, OtlpSpan

PUBLIC_KINDS = (
    "orchestrator_decision", "spawn", "despawn", "message", "tool_call", "tool_result", "return", "aggregate",
    "human_intervention", "safety_event",
)  # fmt: skip
_OPERATIONS = {
    "chat": "llm", "generate_content": "llm", "text_completion": "llm", "execute_tool": "tool",
    "invoke_agent": "agent",
    "create_agent": "create_agent", "apply_guardrail": "guardrail",
}  # fmt: skip
_OPENINFERENCE = {
    "LLM": "llm",
    "TOOL": "tool",
    "RETRIEVER": "tool",
    "AGENT": "agent",
    "GUARDRAIL": "guardrail",
}
_TRACELOOP = {"agent": "agent", "tool": "tool"}
_HANDOFF = re.compile(r"handoff to (.+)", re.IGNORECASE)
_HUMAN = re.compile(
    r"\b(?:human|hitl|approval|approve[ds]?|(?:ask|prompt) user|user (?:input|confirmation|approval))\b",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"refus|den(?:ied|y)|forbid|not "
    r"(?:allowed|permitted)|block|unsafe|permission|guardrail|unauthori[sz]ed|violat|reject",
    re.IGNORECASE,
)
_TRIPPED = re.compile(r"triggered\W{0,3}[:=]\s*true", re.IGNORECASE)
_MINTED = re.compile(
    r"(?<![0-9A-Za-z])(?:chatcmpl-|cmpl-|resp_|msg_|call_|toolu_|fc_)?([0-9a-f]{24})(?![0-9a-f])"
)
"""Ids in the proxy's answers: of the answer, its items and its tool calls. Each contains the call's id."""
_ANSWER_ID = re.compile(r'"(?:id|responseId)"\s*:\s*"((?:chatcmpl-|cmpl-|resp_|msg_)?[0-9a-f]{24})"')
_OUTPUT_CALL = re.compile(r"llm\.output_messages\.\d+\.message\.tool_calls\.\d+\.tool_call\.id")
_LONG = 2_000
_SHORT = 500
_MOST = 16
"""How much of a span is kept.

`_LONG` and `_SHORT` are characters of arguments and of other texts; `_MOST` limits attributes and moments.
"""


@dataclass(frozen=True, slots=True)
class MomentReport:
    """A span event of a kind that the store knows."""

    kind: str
    t: float
    attributes: dict[str, Any]
    evidence: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class SpanReport:
    """What a span reports, reduced to what the store keeps of it."""

    trace_id: str
    span_id: str
    parent_id: str | None
    links: tuple[str, ...]
    name: str
    start: float
    end: float
    deed: str
    """llm, tool, agent, create_agent, handoff, guardrail, a public event kind, or step."""
    evidence: str
    """The convention that says so."""
    confidence: float | None = None
    """From 0 to 1; None if a convention says it."""
    agent: str = ""
    """Name of the acting agent; for an agent span, of that agent."""
    target: str = ""
    """Name of the agent that is acted on."""
    call_id: str | None = None
    """The model call that the span is, or that requested it, by an id that the proxy minted."""
    tool: str = ""
    tool_call_id: str = ""
    given: str = ""
    """Arguments of a tool or task of an agent."""
    got: str = ""
    """Result of a tool or of an agent."""
    got_bytes: int = 0
    error: str | None = None
    refused: float | None = None
    """Confidence that the tool call or the guarded content was refused; None if it was not."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of an event that names its own kind."""
    moments: tuple[MomentReport, ...] = ()

    def stored(self) -> dict[str, Any]:
        """The report as JSON values, without those that equal their defaults."""
        defaults = {one.name: one.default for one in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Self:
        """The report that `stored` wrote."""
        values = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
        values["moments"] = tuple(MomentReport(**moment) for moment in values.get("moments", ()))
        values["links"] = tuple(values.get("links") or ())
        return cls(**values)


def report_of(span: OtlpSpan) -> SpanReport:
    """Reduce a span to its report."""
    attributes = span.attributes
    deed, evidence, confidence = _deed(span)
    moments = tuple(
        moment_report for moment in span.moments if (moment_report := _moment(moment)) is not None
    )[:_MOST]
    tool_call_id = _text(attributes, "gen_ai.tool.call.id", "tool_call.id", "tool.id")
    got = _text(
        attributes,
        "gen_ai.tool.call.result",
        "gen_ai.output.messages",
        "output.value",
        "traceloop.entity.output",
    )
    input_text = _text(
        attributes,
        "gen_ai.tool.call.arguments",
        "gen_ai.input.messages",
        "input.value",
        "tool.parameters",
        "traceloop.entity.input",
    )
    own = deed in PUBLIC_KINDS
    handed = _HANDOFF.fullmatch(span.name.strip())
    return SpanReport(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        links=span.links[:_MOST],
        name=span.name[:_SHORT],
        start=span.start,
        end=span.end,
        deed=deed,
        evidence=evidence,
        confidence=confidence,
        agent=_agent(span, deed),
        target=handed[1] if handed else _text(attributes, "to", "gen_ai.agent.target.name")[:_SHORT],
        call_id=_call(span, deed, tool_call_id),
        tool=_tool(span, deed),
        tool_call_id=tool_call_id[:_SHORT],
        given=input_text[: _LONG if deed == "tool" else _SHORT] if deed in ("tool", "agent") else "",
        got=got[:_SHORT] if deed in ("tool", "agent") else "",
        got_bytes=len(got.encode()) if deed == "tool" else 0,
        error=None if span.error is None else span.error[:_SHORT],
        refused=_refusal(span, deed),
        attributes=_kept(attributes) if own else {},
        moments=moments,
    )


def _deed(span: OtlpSpan) -> tuple[str, str, float | None]:
    """The deed, the convention that says so, and a confidence if no convention does."""
    operation = _text(span.attributes, "gen_ai.operation.name")
    # From the most to the least explicit: a public event kind, OpenInference, GenAI, Traceloop, the name.
    for kind in (operation, span.name.strip()):
        if kind in PUBLIC_KINDS:
            return kind, f"named {kind}", None
    kind = _text(span.attributes, "openinference.span.kind")
    deed = _OPENINFERENCE.get(kind.upper()) or _OPERATIONS.get(operation)
    evidence = (
        f"openinference.span.kind {kind}"
        if kind.upper() in _OPENINFERENCE
        else f"gen_ai.operation.name {operation}"
    )
    if deed is None:
        kind = _text(span.attributes, "traceloop.span.kind")
        deed = _TRACELOOP.get(kind)
        evidence = f"traceloop.span.kind {kind}"
    if deed == "tool" and _HANDOFF.fullmatch(span.name.strip()):
        return "handoff", f"{evidence}, its name", None
    if deed is not None:
        return deed, evidence, None
    if _HUMAN.search(_words(span.name)):
        return "human_intervention", "the span's name", 0.8
    return "step", "", None


def _moment(moment: Moment) -> MomentReport | None:
    """A span event as a report; None if it has no kind that the store knows."""
    name = moment.name.strip().removeprefix("gen_ai.")
    if name in PUBLIC_KINDS:
        return MomentReport(name, moment.t, _kept(moment.attributes), f"span event {name}")
    if _HUMAN.search(_words(name)):
        return MomentReport(
            "human_intervention", moment.t, _kept(moment.attributes), "the span event's name", 0.8
        )
    return None


def _agent(span: OtlpSpan, deed: str) -> str:
    attributes = span.attributes
    name = _text(attributes, "gen_ai.agent.name", "agent.name", "gen_ai.agent.id")
    if not name and deed == "agent":
        name = _text(attributes, "graph.node.name", "graph.node.id", "traceloop.entity.name")
        name = name or span.name.removeprefix("invoke_agent").strip()
    return name[:_SHORT]


def _tool(span: OtlpSpan, deed: str) -> str:
    name = _text(
        span.attributes, "gen_ai.tool.name", "tool.name", "tool_call.function.name", "traceloop.entity.name"
    )
    if not name and deed in ("tool", "guardrail"):
        name = span.name.removeprefix("execute_tool").strip()
    return name[:_SHORT]


def _call(span: OtlpSpan, deed: str, tool_call_id: str) -> str | None:
    """The id of the call that minted an id in the span.

    Only a model call's output is searched: ids in its input belong to earlier calls.
    """
    attributes = span.attributes
    named = [_text(attributes, "gen_ai.response.id", "llm.response.id")]
    if deed == "llm":
        named += [str(value) for name, value in attributes.items() if _OUTPUT_CALL.fullmatch(name)]
        for name in ("output.value", "gen_ai.output.messages", "traceloop.entity.output"):
            named += _ANSWER_ID.findall(_text(attributes, name)[:_LONG])
    named.append(tool_call_id)
    return next((call_id for text in named if (call_id := minted_by(text))), None)


def minted_by(text: str) -> str | None:
    """The call whose answer contained this id; None if the proxy did not mint it."""
    match = _MINTED.search(text)
    return None if match is None else match[1]


def _refusal(span: OtlpSpan, deed: str) -> float | None:
    """The confidence of a refusal, from 0 to 1; None if nothing was refused.

    A guardrail refuses by an error or a triggered tripwire; a tool by an error that says it was refused.
    """
    if deed == "guardrail":
        tripped = any(
            _TRIPPED.search(f"{name}: {_as_text(value)}") for name, value in span.attributes.items()
        )
        return 1.0 if tripped or span.error is not None else None
    if deed != "tool":
        return None
    kinds = [_text(span.attributes, "error.type")]
    texts = [span.error or ""]
    for moment in span.moments:
        if moment.name == "exception":
            kinds.append(_text(moment.attributes, "exception.type"))
            texts.append(_text(moment.attributes, "exception.message"))
    # An error's type is chosen by a programmer and seldom misleads; its text may quote anything.
    failed = span.error is not None or any(kinds)
    if not failed:
        return None
    if any(_REFUSED.search(kind) for kind in kinds):
        return 0.95
    return 0.8 if any(_REFUSED.search(text) for text in texts) else None


def _kept(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an event, renamed as events name them and cut to size."""
    names = {"gen_ai.tool.name": "tool", "gen_ai.tool.call.id": "tool_call_id", "gen_ai.agent.name": "agent"}
    out: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in ("gen_ai.operation.name", "gen_ai.response.id") or len(out) == _MOST:
            continue
        plain = value if isinstance(value, bool | int | float) else _as_text(value)[:_SHORT]
        out[names.get(name, name)[:_SHORT]] = plain
    return out


def _text(attributes: Mapping[str, Any], *names: str) -> str:
    """The first of these attributes that is present and not empty, as text."""
    return next((_as_text(attributes[name]) for name in names if attributes.get(name) not in (None, "")), "")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _words(name: str) -> str:
    return re.sub(r"[_\-.:/]+", " ", name)
