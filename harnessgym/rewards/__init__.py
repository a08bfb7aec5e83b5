"""Rewards by name; see `harnessgym.reward`."""
