"""Checks that the calls of a run with several policies reach every policy.

The first policy answers a call whose model names no policy. This lets a harness ignore policy names, but it
also hides a misspelt name: a policy would then learn nothing and nobody would notice.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from harnessgym.harness import Endpoint
from harnessgym.store import TraceStore, ledger, policies
from harnessgym.store.bodies import StoredBodies

_ROLLOUTS = 8
"""Number of rollouts per step whose requests are searched for model names."""
_BY_RULE = frozenset({"", Endpoint.__dataclass_fields__["model"].default})
"""Model names that mean the first policy: no name, and the default one that harnesses are given."""


@dataclass
class PolicyCalls:
    """Checks each training step of a run, from the first batch on."""

    store: TraceStore
    names: Mapping[str, str]
    """Policy ids by name, the first policy first."""
    _steps: dict[str, int] = field(default_factory=dict)
    """The newest step checked, by policy."""
    _unreached: set[str] = field(default_factory=set)
    """Policies already reported to get no calls."""
    _unknown: set[str] = field(default_factory=set)
    """Model names already reported to be no policy's."""

    def __post_init__(self) -> None:
        if len(self.names) > 1:
            self._steps = self.store.read(self._newest)

    def look(self) -> list[str]:
        """Warnings about steps taken since the last look. Each is given once."""
        if len(self.names) < 2:
            return []
        steps = self.store.read(self._newest)
        fresh = {name: step for name, step in steps.items() if step > self._steps[name]}
        self._steps = steps
        return [line for name, step in fresh.items() for line in self._warnings(name, step)]

    def _newest(self, conn: Connection) -> dict[str, int]:
        newest = {name: policies.latest(conn, policy_id) for name, policy_id in self.names.items()}
        return {name: 0 if version is None else version.step for name, version in newest.items()}

    def _warnings(self, name: str, step: int) -> list[str]:
        policy_id = self.names[name]
        first = next(iter(self.names))
        calls = self.store.read(lambda conn: ledger.calls_of_step(conn, policy_id, step))
        models = self.store.read(
            lambda conn: _models(conn, ledger.rollouts_of_step(conn, policy_id, step, _ROLLOUTS))
        )
        unknown = models - set(self.names) - _BY_RULE - self._unknown
        self._unknown |= unknown
        lines = [
            f"Harnesses asked for the model {model!r}, which is the name of no policy: the first policy, "
            f"{first!r}, answered. The policies are {', '.join(self.names)}."
            for model in sorted(unknown)
        ]
        if calls.get(policy_id):
            self._unreached.discard(name)
        elif calls and name not in self._unreached:
            self._unreached.add(name)
            asked = ", ".join(map(repr, sorted(models))) or "no model by name"
            lines.append(
                f"The policy {name!r} was trained on nothing in step {step}: no call reached it. Harnesses "
                f"asked for {asked}; a name that no policy has is answered by the first one, {first!r}. "
                "Correct the model names of the harnesses, or leave the policy out."
            )
        return lines


def _models(conn: Connection, rollout_ids: list[str]) -> set[str]:
    """Model names in the requests of some rollouts, without side calls.

    A request that names its model in the URL path has none in its body.
    """
    out: set[str] = set()
    for rollout_id in rollout_ids:
        requests = StoredBodies.load(conn, rollout_id, "request")
        for call_id in ledger.policy_calls(conn, rollout_id):
            model = _model(requests.of_call(call_id))
            out |= set() if model is None else {model}
    return out


def _model(body: bytes | None) -> str | None:
    try:
        request = json.loads(body or b"null")
    except ValueError:
        return None
    model = request.get("model") if isinstance(request, dict) else None
    return model if isinstance(model, str) else None
