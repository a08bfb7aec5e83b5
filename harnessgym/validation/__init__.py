"""Checks that a task set can be trained on: solutions get a reward, doing nothing and cheating do not."""
