"""Fault injection: seeded, labelled and recorded, to study and train how an agent reacts.

    fault.py        the kinds of faults, as configuration
    plan.py         which command meets which fault, as a function of the seeds and the command's ordinal;
                    records applied faults as events of the rollout
    around.py       base of the two sandboxes that apply faults
    steps.py        way 1, for the steps of an environment: around `Sandbox.exec`
    shims.py        way 2, for black-box harnesses: programs of the same names, first on the PATH
    connection.py   dropped connections to the proxy, for both ways
    library.py      the preloaded library for clock jumps and full disks

Messages between harness and model are never altered: the proxy records what was really said.
"""
