"""Formats in which rollouts are imported from other projects, one per file.

The contract is `harnessgym.traces.import_`.
"""
