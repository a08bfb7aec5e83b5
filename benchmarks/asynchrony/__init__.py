"""Ways to train asynchronously, simulated on the same draws."""
