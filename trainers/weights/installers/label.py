"""What an engine says that it serves: `VERSION@POLICY`, in its "weight version".

The policy's id is part of it: an engine that served version 3 of another run does not serve version 3 of this
one.
"""

INSTALLING = "installing"
"""The label while the weights are none: an agent that finds it installs again."""


def label_of(policy_id: str, version: int) -> str:
    """The label of a policy's version."""
    return f"{version}@{policy_id}"


def version_in(label: str, policy_id: str) -> int | None:
    """The version that a label names, None if it names none of this policy."""
    version, _, policy = label.partition("@")
    return int(version) if version.isdecimal() and policy == policy_id else None
