"""The Agent Trajectory Interchange Format: its schema, and how messages are converted to it and back."""
