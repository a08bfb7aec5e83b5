"""A run on a virtual clock: the decisions are the real ones, the durations are drawn.

What is real: when work is admitted (`harnessgym.admission`), which worker takes a call (`harnessgym.routing`), what the trainer
consumes (`harnessgym.consumption`), what staleness is (`harnessgym.staleness`), and the weight agents' protocol (leases, drain,
install), of which `trainers.simulation.leases` is checked against the store's. What is drawn: tokens, and the seconds of
environments, graders, training steps and weight transfers. Every figure that comes out is simulated.
"""
