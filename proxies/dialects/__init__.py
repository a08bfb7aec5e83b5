"""The wire protocols by name. The registry has the names; `module:Class` is accepted wherever a name is."""

from harnessgym.registry import REGISTRY, load
from proxies.dialect import Dialect

DIALECTS = REGISTRY["dialect"]


def load_dialect(name: str) -> Dialect:
    """The dialect of that name. Raises `ConfigError` for an unknown one."""
    dialect: Dialect = load("dialect", name)()
    return dialect
