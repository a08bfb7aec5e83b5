"""Checks a session's contracts while it runs: a call after a violation, or one that would cause it, is
refused.

Only what the proxy sees is checked: the policy's calls and their tool calls. Contracts about anything else
are judged when the rollout is over.
"""

import copy
import time
from collections.abc import Sequence

from harnessgym.message import Message
from harnessgym.traces.contracts import Contract, ContractMonitor, online
from harnessgym.traces.step import RolloutStep
from proxies.dialect import Problem


class ContractWatch:
    """The contracts of one session."""

    def __init__(self, contracts: Sequence[Contract]) -> None:
        judged = online(contracts)
        self._watch = ContractMonitor(judged)
        self._ahead = ContractMonitor(
            [contract for contract in judged if getattr(contract, "per", "rollout") == "rollout"]
        )
        """Without contracts per agent: the agent of a call is only known once the call exists."""
        self._idle = not judged

    def committed(self, call_id: str, agent_id: str | None, tokens: int, answer: Message) -> None:
        """Add the answer of an agent's call."""
        if self._idle:
            return
        t = _made_at(call_id)
        steps = [RolloutStep(call_id, "llm_call", t, agent_id, tokens=tokens)]
        steps += [
            RolloutStep(
                call_id,
                "tool_call",
                t,
                agent_id,
                tool=call.name,
                tool_call_id=call.id,
                arguments=call.arguments,
            )
            for call in answer.tool_calls
        ]
        for step in steps:
            self._watch.see(step)
            self._ahead.see(step)

    def refusal(self, in_flight: int, new: int) -> Problem | None:
        """Why `new` more calls, on top of those in flight, are refused; None if they are allowed."""
        if self._idle:
            return None
        violation = self._watch.violation
        ahead = self._ahead
        if violation is None:
            # Try the next calls on a copy: the real ones are added when they have their answers.
            ahead = copy.deepcopy(self._ahead)
            for _ in range(in_flight + new):
                ahead.see(RolloutStep("next", "llm_call", time.time(), tokens=1))
            violation = ahead.violation
        if violation is None:
            return None
        return Problem("limit", f"A contract of this session ends it. {violation}", limit="contract")


def _made_at(call_id: str) -> float:
    """When a call began, in Unix seconds: ids begin with it."""
    return int(call_id[:14], 16) / 1e6
