"""Policy versions on disk, and the agents that install them in engines."""
