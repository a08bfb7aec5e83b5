"""The quickstart's recipe, all in one process: the warm start that makes the shipped policy, and GRPO on
it.
"""
