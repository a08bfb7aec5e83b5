"""Cheats: agents that try to get a reward for nothing, to test graders and sandboxes.

    cheat.py          the contract
    catalogue.py      all cheats, by name
    composition.py    cheats composed of an effect, a trigger, a hiding place and a hook point
    disguise.py       the composed cheats, plain and in disguises that a seed draws
    search.py         candidates without end, composed of the same parts and of patches
    suite.py          runs each in the agent's place and grades the result like any other
    report.py         the table and the JSON output

Each module holds the variants of one class of attack. In the same run the gold solution must score 1 and
doing nothing 0. Otherwise the task is broken and its zeros mean nothing.
"""
