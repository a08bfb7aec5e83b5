"""The Agent Trajectory Interchange Format (ATIF): its schema, and conversion of messages to it and back."""
