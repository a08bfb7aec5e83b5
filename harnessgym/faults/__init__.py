"""Faults on purpose: seeded, labelled and recorded, so that what an agent does about them can be studied and
trained.

    fault.py        what can go wrong, as configuration
    plan.py         which command it happens to: a function of seed, rollout seed and ordinal, and of nothing
    else steps.py        way 1, for the steps of an environment: around `Sandbox.exec` shims.py        way 2,
    for black-box harnesses: programs of the same names, first on the PATH inside the sandbox connection.py
    connections to the proxy that break off, in either way library.py      the preloaded library behind clock
    jumps and full disks recording.py    what was applied, as events of the rollout

A message between harness and model is never altered: what passes the proxy is what was said.
"""
