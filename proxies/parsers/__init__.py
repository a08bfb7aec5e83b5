"""The parsers, one per model family, by name. A `module:Class` is accepted wherever a name is."""

import pkgutil
from collections.abc import Callable

from harnessgym.errors import ConfigError
from proxies.parser import Parser

PARSERS = {"hermes": "proxies.parsers.hermes:HermesParser"}


def load_parser(name: str) -> Callable[..., Parser]:
    """The parser class of that name. Raises `ConfigError` for an unknown one."""
    target = PARSERS.get(name, name)
    if ":" not in target:
        raise ConfigError(f"There is no parser {name!r}; known: {', '.join(sorted(PARSERS))}, or a module:Class.")
    parser: Callable[..., Parser] = pkgutil.resolve_name(target)
    return parser
