"""An engine that no supervisor starts, for blows to it and to its weight agent."""
