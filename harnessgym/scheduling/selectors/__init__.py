"""Selectors (`harnessgym.scheduling.selection`): numpy alone, for they run where groups are planned, on
nodes without torch.
"""
