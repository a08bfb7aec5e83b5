"""Which tasks are sampled, which groups are admitted and consumed, and which engine a call goes to: pure
decisions, among them the bound on staleness.
"""
