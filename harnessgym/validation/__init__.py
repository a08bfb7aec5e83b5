"""Checks that a task set can be trained on: solutions are rewarded, doing nothing and cheating are not."""
