"""The recordings of the traces' tests."""

from tests.harnessgym.traces.conftest import database, recording

__all__ = ["database", "recording"]
