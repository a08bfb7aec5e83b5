"""All cheats, by name."""

import re
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
    lookup,
    preseeding,
    sandbox_escape,
    searching,
)
from harnessgym.grading.cheats.cheat import Cheat
from harnessgym.grading.cheats.disguise import PLAIN, disguises

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
CHEATS: Mapping[str, Cheat] = {
    cheat.name: cheat
    for cheats in (*(module.CHEATS for module in _MODULES), PLAIN, lookup.CHEATS)
    for cheat in cheats
}
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
    """The cheats with these names, or all if `names` is empty.

    A number selects an attack class, and `NAME@SEED.NUMBER` a disguise of a composed cheat. Raises
    ConfigError for an unknown name.
    """
    cheats: dict[str, Cheat] = {}
    for name in names:
        chosen = _chosen(name)
        if not chosen:
            raise ConfigError(f"There is no cheat {name!r}. {nearest(name, list(CHEATS))}")
        cheats |= {each.name: each for each in chosen}
    return tuple(cheats.values() if names else CHEATS.values())


def _chosen(name: str) -> tuple[Cheat, ...]:
    disguise = re.fullmatch(r"(?P<plain>[\w-]+)@(?P<seed>\d+)\.(?P<number>\d{1,4})", name)
    if disguise is not None and disguise["plain"] in CHEATS:
        number = int(disguise["number"])
        return disguises(CHEATS[disguise["plain"]], int(disguise["seed"]), number + 1)[number:]
    if name in CHEATS:
        return (CHEATS[name],)
    return tuple(each for each in CHEATS.values() if str(each.attack) == name)


def disguised(cheats: Sequence[Cheat], seed: int, n: int) -> tuple[Cheat, ...]:
    """The cheats, each composed one followed by `n` disguises of it."""
    return tuple(each for cheat in cheats for each in (cheat, *disguises(cheat, seed, n)))
