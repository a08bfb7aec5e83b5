"""Fills in `${VAR}` and `${VAR:-default}` in values of a task."""

import re
from collections.abc import Mapping

from harnessgym.errors import TaskError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def substituted(text: str, known: Mapping[str, str], where: str) -> str:
    """`text` with its variables filled in. If there is a default, an empty value counts as unset.

    Raises TaskError with `where` for an unknown variable without a default.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        default = found[2]
        if known.get(name) or (default is None and name in known):
            return known[name]
        if default is None:
            raise TaskError(
                f"{where}: the environment variable {name} is not set. Set it, or write ${{{name}:-default}}."
            )
        return default

    return _VARIABLE.sub(value, text)


def substituted_all(table: Mapping[str, str], known: Mapping[str, str], where: str) -> dict[str, str]:
    """Fills in the variables in every value of a table."""
    return {key: substituted(value, known, f"{where}.{key}") for key, value in table.items()}
