"""The key of the proxy's control routes as a setting. It defaults to an environment variable.

It does not belong on a command line, which every user of the machine can read.
"""

import os
from typing import Annotated, Any

from pydantic import AfterValidator, Field

KEY = "HARNESSGYM_CONTROL_KEY"


def _from_environment() -> str:
    return os.environ.get(KEY, "")


def _not_empty(key: str) -> str:
    if not key:
        raise ValueError(f"there is no key: set {KEY}, or give control_key in the file of --config")
    return key


ControlKey = Annotated[str, AfterValidator(_not_empty)]
"""A key that must not be empty."""


def environment_field() -> Any:
    """The pydantic field of a setting that holds the key."""
    return Field(
        default_factory=_from_environment,
        validate_default=True,
        repr=False,
        json_schema_extra={"environment": KEY},
    )
