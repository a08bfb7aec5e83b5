"""The warmed interpreter that forks once per rollout.

This folder is a program of its own. It runs inside the sandbox's outer shell, holds one thread, and imports
nothing but the standard library and what its warm-up loads, so that every fork starts as a clean, ready
Python. The node speaks to it through `harnessgym.sandboxes.forking`.

Each rollout is three processes:

    server ── fork ──► courier: reads the order, unshares, forks, leaves
                          └─► init: PID 1 of the rollout's namespaces; mounts, limits, reaps, reports
                                └─► the harness, running as `__main__` (or exec'd, if it is not Python)

The order holds the key. It is read after the fork, from a socket that only this rollout has, so no sibling's
memory, environment or files ever contain it.
"""
