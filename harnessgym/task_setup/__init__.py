"""Prepares a sandbox for a task: files, setup commands, the oracle solution, and the steps of a task."""
