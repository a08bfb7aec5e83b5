"""What staleness does to learning, and what corrections do about it: `python -m benchmarks.stability`."""
