"""Selectors (`harnessgym.scheduling.selection`). They use only numpy, because nodes have no torch."""
