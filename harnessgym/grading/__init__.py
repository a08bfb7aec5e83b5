"""Grading: exports what an agent left as data and judges it in fresh sandboxes.

A verdict is valid, tampered, or none.
"""
