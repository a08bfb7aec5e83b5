"""Settings of the weight agent, and of what carries policy versions to other machines."""

import os
from pathlib import Path

from pydantic import Field
from pydantic.config import JsonDict

from harnessgym.config import Config
from harnessgym.config.control_key import environment_field

KEY = "HARNESSGYM_WEIGHTS_KEY"
_SHOWN: JsonDict = {"environment": KEY}


def _key() -> str:
    return os.environ.get(KEY, "")


class VersionServerSettings(Config):
    """How a folder of policy versions is served."""

    folder: Path
    """The versions: `versions` in a run's folder, or a mirror of it."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8900
    """Port to listen on; 0 takes a free one (the line printed at start names it)."""
    key: str = Field(
        default_factory=_key, min_length=16, validate_default=True, repr=False, json_schema_extra=_SHOWN
    )
    """Key that clients must send as `Authorization: Bearer KEY`; HARNESSGYM_WEIGHTS_KEY in the environment if
    not given."""


class MirrorSettings(Config):
    """How a folder follows the versions that another machine serves."""

    url: str
    """Address of the version server."""
    folder: Path
    """Folder for the versions. One policy and run per folder."""
    key: str = Field(default_factory=_key, validate_default=True, repr=False, json_schema_extra=_SHOWN)
    """Bearer key of the server; HARNESSGYM_WEIGHTS_KEY in the environment if not given."""
    bytes_per_s: float | None = Field(None, gt=0)
    """Rate limit of downloads; None for no limit."""
    patience_s: float = Field(60.0, gt=0)
    """Seconds without a new byte, retries included, before a fetch fails."""
    timeout_s: float = Field(15.0, gt=0)
    """Longest silence of the server on an open connection."""
    longest_chain: int = Field(64, gt=0)
    """Most deltas in a row; beyond that a full version is fetched, if there is one."""
    keep: int = Field(2, gt=0)
    """Number of newest versions to keep, besides those that they build on."""
    poll_s: float = Field(1.0, gt=0)
    """Seconds between two polls of the server (`harnessgym weights mirror`)."""


class AgentSettings(Config):
    """How an engine worker follows the versions of a policy."""

    store: str
    """URL of the trace store."""
    policy_id: str
    """The policy whose newest committed version is served."""
    run_id: str
    """The run this worker belongs to."""
    address: str | None = None
    """Address at which the proxy reaches this worker, if it is not the one it listens on."""
    control_url: str | None = None
    """The proxy's control API: http://host:port or unix:/path/to.sock. Without it nothing is drained."""
    control_key: str = environment_field()
    """Bearer key of the control API; HARNESSGYM_CONTROL_KEY in the environment if not given."""
    update_leases: int = 1
    """How many workers of this policy may update at the same time (f)."""
    lease_ttl_s: float = 30.0
    """Seconds without renewal after which a dead agent's update lease is free again, and its outside engine
    counts as dead."""
    poll_s: float = 0.1
    """Seconds between two polls of the store, if the database cannot notify (`TraceStore.watch`)."""
    mirror: MirrorSettings | None = None
    """Fetches versions from a version server, if the paths in the store are those of another machine."""
    look_s: float = 1.0
    """Seconds between two checks of which version an outside engine serves: it may have been restarted."""
    drain_s: float = 5.0
    """Seconds in which calls in flight may finish, before they are prefilled again under the new weights."""
