"""Formats in which rollouts are exported to other projects, one per file.

The contract is `harnessgym.traces.export`.
"""
