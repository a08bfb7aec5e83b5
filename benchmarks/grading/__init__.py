"""What judging by value adds to the grading of a rollout."""
