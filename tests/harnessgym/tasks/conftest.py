"""Samples of task formats hold tests of their own, for sandboxes."""

collect_ignore = ["samples"]
