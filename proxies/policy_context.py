"""A strand: what one policy was asked and said in a session.

Every policy continues its own answers alone. What another one said is context like any message of a tool: it
is rendered, in this policy's language, and is no sampled token here.
"""

from dataclasses import dataclass, field

from harnessgym.traces.forest import Forest
from proxies.conversations import Conversations


@dataclass
class PolicyContext:
    """Its tokens, and what a later request is compared with."""

    forest: Forest
    heads: set[str] = field(default_factory=set)
    """Digests of every leading part of every request so far."""
    conversations: Conversations = field(default_factory=Conversations)
    """What the latest calls were asked."""
