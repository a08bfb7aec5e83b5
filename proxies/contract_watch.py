"""Contracts of a session while it runs: once one is broken, or the next call would break it, there is no next
call.

What is watched is what passes here: the policy's calls and the tools that they call. Contracts about anything
else are judged when the rollout is over.
"""

import copy
import time
from collections.abc import Sequence

from harnessgym.message import Message
from harnessgym.traces.contracts import Contract, ContractMonitor, online
from harnessgym.traces.step import RolloutStep
from proxies.dialect import Problem


class ContractWatch:
    """The contracts that one session is held to."""

    def __init__(self, contracts: Sequence[Contract]) -> None:
        judged = online(contracts)
        self._watch = ContractMonitor(judged)
        self._ahead = ContractMonitor(
            [contract for contract in judged if getattr(contract, "per", "rollout") == "rollout"]
        )
        """Without those about single agents: whose a call is shows when it is continued."""
        self._idle = not judged

    def committed(self, call_id: str, agent_id: str | None, tokens: int, answer: Message) -> None:
        """A call of an agent has its answer."""
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
        """Why there can be no so many new calls, beside those in flight; None if there can."""
        if self._idle:
            return None
        violation = self._watch.violation
        ahead = self._ahead
        if violation is None:
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
