"""Ages, as people write them: `30d`."""

import re

from harnessgym.errors import ConfigError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def seconds_of(age: str) -> float:
    """The seconds of an age. Raises `ConfigError` if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if found is None:
        raise ConfigError(
            f"{age!r} is no age: write a number and s, m, h, d or w (seconds to weeks), e.g. 30d or 12h."
        )
    return float(found[1]) * _UNITS[found[2]]
