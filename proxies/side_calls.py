"""Tells side calls, such as titles and quota probes, from the calls in which the policy acts."""

import re
from collections.abc import Sequence

from harnessgym.harness import SideCallRule
from proxies.dialect import ModelRequest

_CLAUDE_CODE = r"\Ax-anthropic-billing-header:"
BUILT_IN = (
    SideCallRule(
        kind="side", name="quota probe", no_tools=True, max_tokens=1, user_pattern=r"\A(?:quota|count)\Z"
    ),
    SideCallRule(kind="side", name="title", no_tools=True, json_schema=True, system_pattern=_CLAUDE_CODE),
)
"""Side-call rules of every session, tried after its own. They know Claude Code by what it says, because the
Claude Agent SDK runs it under other programs' names.
"""


def classify(request: ModelRequest, rules: Sequence[SideCallRule]) -> SideCallRule | None:
    """The first rule that matches a request; None for the policy's own calls."""
    return next((rule for rule in (*rules, *BUILT_IN) if _meets(request, rule)), None)


def _meets(request: ModelRequest, rule: SideCallRule) -> bool:
    return (
        not (rule.no_tools and request.tools)
        and not (rule.json_schema and request.output is None)
        and rule.model in ("", request.model)
        and (
            not rule.max_tokens or (request.max_tokens is not None and request.max_tokens <= rule.max_tokens)
        )
        and (not rule.system_prefix or _system(request).startswith(rule.system_prefix))
        and (not rule.system_pattern or re.search(rule.system_pattern, _system(request)) is not None)
        and (not rule.user_pattern or re.search(rule.user_pattern, _last_user(request)) is not None)
    )


def _system(request: ModelRequest) -> str:
    return next((message.content for message in request.messages if message.role == "system"), "")


def _last_user(request: ModelRequest) -> str:
    return next((message.content for message in reversed(request.messages) if message.role == "user"), "")
