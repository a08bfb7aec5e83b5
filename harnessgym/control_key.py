"""The key of the proxy's control routes, as settings have it: from the environment if not given.

A command line is no place for it, for every user of the machine can read that.
"""

import os
from typing import Annotated, Any

from pydantic import AfterValidator, Field

KEY = "HARNESSGYM_CONTROL_KEY"


def _from_environment() -> str:
    return os.environ.get(KEY, "")


def _given(key: str) -> str:
    if not key:
        raise ValueError(f"there is none: set {KEY}, or give it in the file of --config")
    return key


ControlKey = Annotated[str, AfterValidator(_given)]
"""A key that must be there."""


def environment_field() -> Any:
    """The default of a setting that is the key."""
    return Field(
        default_factory=_from_environment,
        validate_default=True,
        repr=False,
        json_schema_extra={"environment": KEY},
    )
