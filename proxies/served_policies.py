"""The policies behind one proxy: which of them a model name asks for, and the language of each.

A proxy that serves one policy gives every call to it, whatever model the harness names. With several, each
has an id, and a call whose model is the name of one of them is that one's; any other name is the first's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from harnessgym.message import Message
from harnessgym.tokens import TokenIds
from proxies.language import PolicyLanguage
from proxies.raw_prompt import RawPrompts


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """One of them."""

    name: str
    language: PolicyLanguage
    raw: RawPrompts
    id: str | None = None
    """In the store; None where it is the only one."""

    @classmethod
    def of(cls, name: str, language: PolicyLanguage, policy_id: str | None = None) -> Self:
        """A policy that speaks a language."""
        return cls(name, language, RawPrompts(language), policy_id)


class ServedPolicies:
    """All of them; the first one answers calls that name none."""

    def __init__(self, policies: Sequence[ServedPolicy]) -> None:
        self.first = policies[0]
        self.names = tuple(policy.name for policy in policies)
        self._by_name = {policy.name: policy for policy in policies}
        self._by_id = {policy.id: policy for policy in policies}

    @classmethod
    def alone(cls, language: PolicyLanguage, name: str = "policy") -> Self:
        """One policy, for every call."""
        return cls((ServedPolicy.of(name, language),))

    def named(self, model: str | None) -> ServedPolicy:
        """Whom a model name asks for."""
        return self._by_name.get(model or "", self.first)

    def by_id(self, policy_id: str | None) -> ServedPolicy:
        """The policy with an id; the first for one that nobody here has."""
        return self._by_id.get(policy_id, self.first)

    def read(self, ids: TokenIds, policy_id: str | None) -> Message:
        """What tokens say that a policy sampled."""
        return self.by_id(policy_id).language.read(ids)
