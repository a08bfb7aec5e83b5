"""What selectors that choose group sizes ask of a run."""

from harnessgym.errors import ConfigError
from harnessgym.selection import Pool


def needs_groups(selector: str, pool: Pool) -> None:
    """Raises `ConfigError` where a group is one rollout: its size says nothing, and a task's success rate is no estimate."""
    if pool.group_size < 2:
        raise ConfigError(
            f"The selector {selector} chooses how many rollouts a group has, from how those of earlier groups came out, and "
            "with trainer.group_size = 1 a group is one rollout: raise group_size, or choose uniform, vade or insight."
        )
