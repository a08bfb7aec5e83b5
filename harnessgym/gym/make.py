"""`harnessgym.make`: makes the shipped gymnasium environments by short names."""

from typing import TYPE_CHECKING, Any

from harnessgym.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium

_MODULE = "environments"
_NAMESPACE = "harnessgym"


def make(name: str, **options: Any) -> "gymnasium.Env[Any, Any]":
    """`make("SWE-v0")` is `gymnasium.make("environments:harnessgym/SWE-v0")` with the same options.

    Raises `ConfigError` without gymnasium, and for an unknown name gymnasium's own error, which lists the
    known ones.
    """
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ConfigError(f"Environments need {error.name}: pip install 'harnessgym-rl[envs]'.") from error
    return gymnasium.make(f"{_MODULE}:{_NAMESPACE}/{name.removeprefix(f'{_NAMESPACE}/')}", **options)
