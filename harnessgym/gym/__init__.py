"""Gymnasium environments in which an action is a whole rollout of a harness, or one message to it."""
