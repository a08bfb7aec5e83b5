"""Evaluations: policies run on the same held-out tasks, and compared task by task."""
