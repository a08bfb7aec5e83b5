"""The renderers: from messages to the token ids of a model family."""
