"""A run on a virtual clock: the decisions are the real ones, the durations are drawn.

What is real: when work is admitted (`harnessgym.scheduling.admission`), which worker takes a call
(`harnessgym.scheduling.routing`), what the trainer consumes (`harnessgym.scheduling.consumption`), what
staleness is (`harnessgym.scheduling.staleness`). What is modelled: the queue of rollouts, the weight agents'
protocol (fetch, drain, install), and leases, which are checked against the store's. What is drawn: tokens,
and the seconds of environments, graders, training steps and weight transfers. Every figure that comes out is
simulated.
"""
