"""Evaluates policies on the same held-out tasks and compares them task by task."""
