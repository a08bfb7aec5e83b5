"""An engine that no supervisor starts, for kills of its weight agent."""
