"""Checks what this machine can do, what it lacks, and how to get it."""
