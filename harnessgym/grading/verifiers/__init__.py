"""The verifiers of the task formats: run a benchmark's own tests and read the results as hostile data."""
