"""Grading: what an agent left is taken out as data, judged in fresh sandboxes, and a verdict is valid,
tampered, or none.
"""
