"""An overview of one rollout: its calls, agents, trainable tokens and history breaks."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from harnessgym.store import events
from harnessgym.store.facts import agents_of, calls_of
from harnessgym.traces.trajectories import rows_of


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts of one rollout."""

    calls: int
    by_protocol: Mapping[str, int]
    by_kind: Mapping[str, int]
    """policy, compaction, or the names of side-call rules."""
    by_status: Mapping[str, int]
    agents: tuple[str, ...]
    branches: int
    """Number of rows that a trainer would get."""
    sampled: int
    trainable: int
    excluded: Mapping[str, int]
    """Tokens that are not trained, by reason."""
    breaks: Mapping[str, int]
    """Calls that could not continue an earlier one, by class of the break."""
    unparsed: int
    """Pieces of malformed markup in answers, such as tool calls without an end."""
    refused: Mapping[str, int]
    """Requests that the proxy refused, by kind of error."""

    def rows(self) -> list[tuple[str, str]]:
        """Return name and value of each line, for a table."""
        return [
            (
                "calls",
                (
                    f"{self.calls} ({_counts(self.by_protocol)}; {_counts(self.by_kind)}; "
                    f"{_counts(self.by_status)})"
                ),
            ),
            ("agents", ", ".join(self.agents) or "-"),
            ("branches", str(self.branches)),
            (
                "tokens",
                (
                    f"{self.sampled} sampled = {self.trainable} trainable + {self.sampled - self.trainable} "
                    "excluded"
                ),
            ),
            ("excluded", _counts(self.excluded)),
            ("history breaks", _counts(self.breaks)),
            ("malformed markup", str(self.unparsed)),
            ("refused requests", _counts(self.refused)),
        ]


def overview(conn: Connection, rollout_id: str) -> Overview:
    """Return the overview of a rollout. Raises `TraceError` if stored tokens contradict each other."""
    calls = calls_of(conn, rollout_id)
    agents = sorted(agents_of(conn, rollout_id), key=lambda agent: agent.id)
    refused = events.of_rollout(conn, rollout_id, "refused_request")
    trajectory = rows_of(conn, rollout_id, group_id="")
    excluded: Counter[str] = Counter()
    for item in trajectory.exclusions:
        excluded[item.reason] += item.end - item.start
    return Overview(
        calls=len(calls),
        by_protocol=Counter(call.protocol for call in calls),
        by_kind=Counter(call.side_call or call.kind for call in calls),
        by_status=Counter(call.status for call in calls),
        agents=tuple(agent.name for agent in agents),
        branches=len(trajectory.rows),
        sampled=trajectory.sampled,
        trainable=trajectory.trained,
        excluded=excluded,
        breaks=Counter(call.break_class for call in calls if call.break_class),
        unparsed=sum(call.usage.get("unparsed", 0) for call in calls),
        refused=Counter(event.attributes["problem"] for event in refused),
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "-"
