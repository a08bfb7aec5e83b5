"""How agents are called and coloured on the screen."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from harnessgym.traces.facts import AgentFacts

_COLOURS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "bright_blue",
    "bright_red",
    "bright_cyan",
    "bright_magenta",
)


@dataclass
class AgentLabels:
    """Names that are unique in a rollout: of agents with one name, the later ones are numbered."""

    agents: Sequence[AgentFacts]
    nameless: str = "agent"
    """What calls of no known agent are made by."""
    _names: dict[str, str] = field(init=False)
    _colours: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        seen: Counter[str] = Counter()
        self._names = {}
        self._colours = {}
        for at, agent in enumerate(self.agents):
            seen[agent.name] += 1
            number = seen[agent.name]
            self._names[agent.id] = agent.name if number == 1 else f"{agent.name} #{number}"
            self._colours[agent.id] = _COLOURS[at % len(_COLOURS)]

    def name(self, agent_id: str | None) -> str:
        """Of an agent."""
        return self._names.get(agent_id or "", self.nameless)

    def colour(self, agent_id: str | None) -> str:
        """Of an agent."""
        return self._colours.get(agent_id or "", _COLOURS[0])
