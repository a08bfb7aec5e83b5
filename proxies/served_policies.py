"""The policies behind one proxy, by model name and by id.

A proxy with one policy sends it every call, whatever model the harness names. With several, each has an id. A
call whose model is the name of a policy goes to that policy, any other call to the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from harnessgym.message import Message, ToolSpec
from harnessgym.tokens import TokenIds
from proxies.language import PolicyLanguage
from proxies.raw_prompt import RawPrompts


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """One policy of a proxy."""

    name: str
    language: PolicyLanguage
    raw: RawPrompts
    id: str | None = None
    """Its id in the store; None if it is the only policy."""

    @classmethod
    def of(cls, name: str, language: PolicyLanguage, policy_id: str | None = None) -> Self:
        """A policy with its language."""
        return cls(name, language, RawPrompts(language), policy_id)


class ServedPolicies:
    """All policies of a proxy. The first answers calls that name none of them."""

    def __init__(self, policies: Sequence[ServedPolicy]) -> None:
        self.first = policies[0]
        self.names = tuple(policy.name for policy in policies)
        self._by_name = {policy.name: policy for policy in policies}
        self._by_id = {policy.id: policy for policy in policies}

    @classmethod
    def alone(cls, language: PolicyLanguage, name: str = "policy") -> Self:
        """A single policy for every call."""
        return cls((ServedPolicy.of(name, language),))

    def named(self, model: str | None) -> ServedPolicy:
        """The policy for a model name."""
        return self._by_name.get(model or "", self.first)

    def by_id(self, policy_id: str | None) -> ServedPolicy:
        """The policy with an id; the first for an unknown id."""
        return self._by_id.get(policy_id, self.first)

    def read(self, ids: TokenIds, policy_id: str | None, offered: Sequence[ToolSpec] = ()) -> Message:
        """Tokens that a policy sampled, as a message. `offered` are the tools that it could call."""
        return self.by_id(policy_id).language.read(ids, offered)
