"""Cheats: agents that try to be rewarded for nothing, so that a grader and a sandbox can be held against
them.

    cheat.py          the contract
    catalogue.py      all of them, by name
    suite.py          runs each in the agent's place and has the result judged as any other
    report.py         the table and the JSON of it

One module holds the variants of one class of attack. The gold solution must score 1 and doing nothing 0 in
the same run, or a task is broken and its zeros mean nothing.
"""
