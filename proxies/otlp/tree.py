"""The spans of a rollout as trees, matched to the calls and agents that the proxy saw.

A span matches a call by an id that the proxy minted; that is exact. A model call's span without such an id
matches the first free call within its time, of its agent where that is known. The more candidates there are,
the lower the confidence. An agent's span stands for the agent whose calls happened in it; if there were
several agents, for the one with the most calls.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proxies.otlp.conventions import SpanReport

BY_ID, BY_TIME = "an id that the proxy minted", "order of time"
_LIKELY = 0.9
_GUESS = 0.5


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call as the proxy recorded it."""

    id: str
    agent_id: str | None
    start: float
    """Unix seconds."""
    end: float


@dataclass(frozen=True, slots=True)
class JoinedSpan:
    """The call that a span matches, with the evidence."""

    call: SeenCall
    evidence: str = BY_ID
    confidence: float | None = None


@dataclass
class _Timeline:
    """Calls sorted by start and by end, for searches by time."""

    calls: list[SeenCall]
    _ended: list[SeenCall] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = sorted(self.calls, key=lambda call: (call.start, call.id))
        self._ended = sorted(self.calls, key=lambda call: call.end)

    def last_before(self, t: float) -> SeenCall | None:
        at = bisect_right(self._ended, t, key=lambda call: call.end)
        return self._ended[at - 1] if at else None

    def first_after(self, t: float) -> SeenCall | None:
        at = bisect_left(self.calls, t, key=lambda call: call.start)
        return self.calls[at] if at < len(self.calls) else None

    def within(self, start: float, end: float) -> list[SeenCall]:
        at = bisect_left(self.calls, start, key=lambda call: call.start)
        until = bisect_right(self.calls, end, key=lambda call: call.start)
        return [call for call in self.calls[at:until] if call.end <= end]


class SpanTree:
    """All spans of a rollout, matched to the proxy's record."""

    def __init__(
        self, reports: Iterable[SpanReport], calls: Iterable[SeenCall], names: Sequence[tuple[str, str]] = ()
    ) -> None:
        """`names` are the (name, id) pairs of the agents that the proxy knows."""
        self.reports = sorted(reports, key=lambda report: (report.start, -report.end, report.span_id))
        self._by_id = {report.span_id: report for report in self.reports}
        self._known: dict[str, tuple[SpanReport | None, SpanReport | None]] = {}
        self.calls = {call.id: call for call in calls}
        by_agent: dict[str | None, list[SeenCall]] = {}
        for call in self.calls.values():
            by_agent.setdefault(call.agent_id, []).append(call)
        self._all = _Timeline(list(self.calls.values()))
        self._acting = _Timeline([call for call in self._all.calls if call.agent_id is not None])
        self._of_agent = {
            agent: _Timeline(agent_calls) for agent, agent_calls in by_agent.items() if agent is not None
        }
        self._joined = {
            span.span_id: JoinedSpan(self.calls[span.call_id])
            for span in self.reports
            if span.call_id in self.calls
        }
        self._agents: dict[str, str] = {}
        self._inside: dict[str, dict[str, JoinedSpan]] = {}
        # Exact matches identify agents' spans; those narrow the matches by time; and these may identify the
        # agents' spans that had no exact match.
        self._identify()
        self._join_by_time()
        self._identify()
        self._named = self._names(names)

    def parent(self, report: SpanReport) -> SpanReport | None:
        """The span's parent; for the root of a trace, the first known span that it links to."""
        if report.parent_id is not None:
            return self._by_id.get(report.parent_id)
        return next(
            (linked_span for link in report.links if (linked_span := self._by_id.get(link)) is not None), None
        )

    def agent_around(self, report: SpanReport) -> SpanReport | None:
        """The nearest agent span around this span."""
        return self._around(report)[0]

    def tool_around(self, report: SpanReport) -> SpanReport | None:
        """The nearest tool span around this span, inside the same agent span."""
        return self._around(report)[1]

    def _around(self, report: SpanReport) -> "tuple[SpanReport | None, SpanReport | None]":
        """The agent and tool spans around a span.

        Results are cached, so each span is walked once however deep the tree is.
        """
        # Exporters may send cyclic parents or links. `passed` stops the walk there, and a loop instead of
        # recursion stands any depth.
        path: list[SpanReport] = []
        passed: set[str] = set()
        at: SpanReport | None = report
        while at is not None and at.span_id not in self._known and at.span_id not in passed:
            path.append(at)
            passed.add(at.span_id)
            at = self.parent(at)
        for below in reversed(path):
            above = self.parent(below)
            agent, tool = self._known.get("" if above is None else above.span_id, (None, None))
            if above is not None and above.deed == "agent":
                agent = above
                tool = None
            elif above is not None and above.deed == "tool":
                tool = above
            self._known[below.span_id] = agent, tool
        return self._known[report.span_id]

    def repeats(self, report: SpanReport) -> bool:
        """Whether two instrumentations report the same thing.

        That is a span directly inside one of the same kind and name.
        """
        above = self.parent(report)
        if above is None or above.deed != report.deed or report.deed not in ("agent", "tool"):
            return False
        return (
            above.agent == report.agent
            and above.tool == report.tool
            and report.tool_call_id in ("", above.tool_call_id)
        )

    def call(self, report: SpanReport) -> JoinedSpan | None:
        """The call that a span is, or that requested it; None if it matches none."""
        return self._joined.get(report.span_id)

    def named_call(self, call_id: str | None) -> JoinedSpan | None:
        """The call with this id; None if the rollout has no such call."""
        call = self.calls.get(call_id or "")
        return None if call is None else JoinedSpan(call)

    def agent_id(self, report: SpanReport) -> str | None:
        """The id of the acting agent; for an agent's span, of that agent.

        None if the proxy knows no such agent or cannot tell which one it is.
        """
        if report.deed == "agent":
            return self._agents.get(report.span_id) or self._named.get(report.agent)
        joined = self._joined.get(report.span_id)
        if joined is not None and joined.call.agent_id is not None:
            return joined.call.agent_id
        if report.agent:
            return self._named.get(report.agent)
        above = self.agent_around(report)
        return None if above is None else self.agent_id(above)

    def named(self, name: str) -> str | None:
        """The id of the agent with this name; None if no agent or several agents have it."""
        return self._named.get(name)

    def inside(self, report: SpanReport) -> list[JoinedSpan]:
        """The calls inside an agent's span, in order of time."""
        joined_spans = list(self._inside.get(report.span_id, {}).values())
        agent = self.agent_id(report)
        if not joined_spans and agent in self._of_agent:
            joined_spans = [
                JoinedSpan(call, BY_TIME, _LIKELY)
                for call in self._of_agent[agent].within(report.start, report.end)
            ]
        return sorted(joined_spans, key=lambda joined: joined.call.start)

    def last_before(self, agent: str | None, t: float) -> JoinedSpan | None:
        """The agent's last call that ended by time `t`; None if there is none."""
        timeline, confidence = self._timeline(agent)
        call = timeline.last_before(t)
        return None if call is None else JoinedSpan(call, BY_TIME, confidence)

    def first_after(self, agent: str | None, t: float) -> JoinedSpan | None:
        """The agent's first call that started at time `t` or later; None if there is none."""
        timeline, confidence = self._timeline(agent)
        call = timeline.first_after(t)
        return None if call is None else JoinedSpan(call, BY_TIME, confidence)

    def _timeline(self, agent: str | None) -> tuple[_Timeline, float]:
        """An agent's calls and the confidence in a match by time.

        For an unknown agent these are the calls of all agents, which is only likely with a single agent.
        """
        if agent is not None:
            return self._of_agent.get(agent, _NONE), _LIKELY
        return self._acting, _LIKELY if len(self._of_agent) == 1 else _GUESS

    def _identify(self) -> None:
        """Find the agent of each agent span by the calls inside it; the agent with most calls wins."""
        self._inside.clear()
        for span in self.reports:
            joined = self._joined.get(span.span_id)
            above = None if joined is None else self.agent_around(span)
            if joined is not None and above is not None:
                self._inside.setdefault(above.span_id, {})[joined.call.id] = joined
        self._agents.clear()
        for span_id, calls in self._inside.items():
            votes = Counter(
                joined.call.agent_id for joined in calls.values() if joined.call.agent_id is not None
            )
            if votes:
                self._agents[span_id] = votes.most_common(1)[0][0]

    def _join_by_time(self) -> None:
        # The spans are in order of time and each call is given away once, so concurrent calls of one agent
        # match in order.
        joined_call_ids = {joined.call.id for joined in self._joined.values()}
        for span in self.reports:
            if span.deed != "llm" or span.span_id in self._joined or span.call_id is not None:
                continue
            above = self.agent_around(span)
            agent = None if above is None else self._agents.get(above.span_id)
            among = self._all if agent is None else self._of_agent[agent]
            meant = [call for call in among.within(span.start, span.end) if call.id not in joined_call_ids]
            if meant:
                self._joined[span.span_id] = JoinedSpan(meant[0], BY_TIME, round(_LIKELY / len(meant), 3))
                joined_call_ids.add(meant[0].id)

    def _names(self, known: Sequence[tuple[str, str]]) -> dict[str, str | None]:
        """Maps each name to its agent's id, or to None if several agents have it."""
        meant: dict[str, set[str]] = {}
        for span in self.reports:
            joined = self._joined.get(span.span_id)
            agent = (
                self._agents.get(span.span_id)
                if span.deed == "agent"
                else None
                if joined is None
                else joined.call.agent_id
            )
            if span.agent and agent is not None:
                meant.setdefault(span.agent, set()).add(agent)
        for name, agent in known:
            meant.setdefault(name, {agent})
        return {name: next(iter(agents)) if len(agents) == 1 else None for name, agents in meant.items()}


_NONE = _Timeline([])
