"""Parts of `benchmarks.train`."""
