"""All cheats, by name."""

from collections.abc import Mapping, Sequence

from harnessgym.config import nearest
from harnessgym.errors import ConfigError
from harnessgym.grading.cheats import (
    daemons,
    exfiltration,
    forging,
    hijacking,
    history,
    limit_abuse,
    links,
    preseeding,
    sandbox_escape,
    searching,
)
from harnessgym.grading.cheats.cheat import Cheat

_MODULES = (
    preseeding,
    daemons,
    hijacking,
    forging,
    history,
    searching,
    links,
    limit_abuse,
    exfiltration,
    sandbox_escape,
)
CHEATS: Mapping[str, Cheat] = {cheat.name: cheat for module in _MODULES for cheat in module.CHEATS}
"""Name to cheat, ordered by attack class."""
QUICK: tuple[Cheat, ...] = tuple(
    CHEATS[name]
    for name in (
        "reward-files-inside",
        "daemon-hydra",
        "conftest-hooks",
        "forged-reward-line",
        "history-objects",
        "gold-by-name",
        "links-to-gold",
        "deletes-everything",
        "carries-out-while-graded",
        "reads-this-machine",
    )
)
"""A fast cheat of each class."""


def named(names: Sequence[str]) -> tuple[Cheat, ...]:
    """The cheats with these names, or all if `names` is empty. A number selects an attack class.

    Raises ConfigError for an unknown name.
    """
    cheats: dict[str, Cheat] = {}
    for name in names:
        of_class = {each.name: each for each in CHEATS.values() if str(each.attack) == name}
        if name not in CHEATS and not of_class:
            raise ConfigError(f"There is no cheat {name!r}. {nearest(name, list(CHEATS))}")
        cheats |= of_class or {name: CHEATS[name]}
    return tuple(cheats.values() if names else CHEATS.values())
