"""Checks that selectors of group sizes make on a run's settings."""

from harnessgym.errors import ConfigError
from harnessgym.scheduling.selection import SelectionPool


def needs_groups(selector: str, pool: SelectionPool) -> None:
    """Raises `ConfigError` if groups have one rollout: one reward is no estimate of a success rate."""
    if pool.group_size < 2:
        raise ConfigError(
            f"The selector {selector} chooses how many rollouts a group has, from how those of earlier "
            "groups came out, and "
            "with trainer.group_size = 1 a group is one rollout: raise group_size, or choose uniform, vade "
            "or insight."
        )


def within(
    selector: str, setting: str, size: int, *, least: int | None = None, most: int | None = None
) -> int:
    """Return `size`, a setting of a selector. Raises `ConfigError` if it is below `least` or above `most`."""
    if least is not None and size < least:
        raise ConfigError(
            f"generate.settings, selector {selector}: {setting} = {size} is below trainer.group_size = "
            f"{least}: raise it, or "
            "lower group_size."
        )
    if most is not None and size > most:
        raise ConfigError(
            f"generate.settings, selector {selector}: {setting} = {size} is above trainer.group_size = "
            f"{most}: lower it, or "
            "raise group_size."
        )
    return size
