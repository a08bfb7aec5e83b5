"""Harness: the agent that `harnessgym/Harness-v0` runs where no other is named."""
