"""What publishing policy versions as deltas saves, and what it costs."""
