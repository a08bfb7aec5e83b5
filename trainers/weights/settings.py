"""Settings of the weight agent."""

from harnessgym.config import Config


class AgentSettings(Config):
    """How an engine worker follows the versions of a policy."""

    store: str
    """URL of the trace store."""
    policy_id: str
    """The policy whose newest committed version is served."""
    run_id: str
    """The run this worker belongs to."""
    address: str | None = None
    """Where the proxy reaches this worker, if not where it listens."""
    control_url: str | None = None
    """The proxy's control API: http://host:port or unix:/path/to.sock. Without it nothing is drained."""
    control_key: str = ""
    """Bearer key of the control API."""
    update_leases: int = 1
    """How many workers of this policy may update at the same time (f)."""
    lease_ttl_s: float = 30.0
    """After this long without renewal a dead agent's update lease is free again."""
    poll_s: float = 0.1
    """Time between two looks at the store, where the database does not tell of changes (`TraceStore.watch`)."""
    look_s: float = 1.0
    """Time between two looks at which version an outside engine serves: it may have been started anew."""
    drain_s: float = 5.0
    """Time calls in flight get before they are re-prefilled under the new weights."""
