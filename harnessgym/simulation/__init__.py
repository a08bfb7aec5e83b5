"""Simulates a run on a virtual clock: the decisions are the real ones, the durations are drawn.

Real: admission (`harnessgym.scheduling.admission`), call routing (`harnessgym.scheduling.routing`),
consumption (`harnessgym.scheduling.consumption`) and staleness (`harnessgym.scheduling.staleness`). Modelled:
the queue of rollouts, the weight agents' protocol (fetch, drain, install) and leases, which tests compare
with the store's. Drawn: tokens, and the seconds of environments, graders, training steps and weight
transfers. Every figure it reports is simulated.
"""
