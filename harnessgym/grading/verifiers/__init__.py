"""The verifiers of the task formats: each runs a benchmark's own tests and reads their results as hostile
data.
"""
