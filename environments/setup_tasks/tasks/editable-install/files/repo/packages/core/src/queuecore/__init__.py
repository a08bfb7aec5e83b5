"""What a queue needs to know."""

LIMIT = 5
