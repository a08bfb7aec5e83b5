"""`--side-call`: rules for calls in which the policy does not act."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harnessgym.harness import SideCallRule

SideCalls = Annotated[
    list[str] | None,
    typer.Option(
        "--side-call",
        metavar="RULE",
        help="Calls that are recorded and never trained, such as titles: a TOML table with their name and "
        """conditions, e.g. '{name = "title", no_tools = true, system_pattern = "commit message"}'. """
        "Conditions: no_tools, json_schema, model, max_tokens, system_prefix, system_pattern, user_pattern. "
        "Repeatable.",
    ),
]


def rules_of(words: list[str]) -> "tuple[SideCallRule, ...]":
    """The rules of `--side-call`.

    Raises `BadParameter` for what is no table, `ConfigError` for a table that is no rule.
    """
    from harnessgym.config import parse_value, validate
    from harnessgym.harness import SideCallRule

    rules = []
    for word in words:
        table = parse_value(word)
        if not isinstance(table, dict):
            raise typer.BadParameter(
                f"--side-call {word!r}: write a TOML table, e.g. '{{name = \"title\", json_schema = true}}'"
            )
        rules.append(validate(SideCallRule, {"kind": "side", **table}, "--side-call"))
    return tuple(rules)
