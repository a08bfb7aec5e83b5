"""Judging by value: the judged code answers in one sandbox, gold in another, and this machine compares.

    variants.py          the task's tests with other inputs, as calls whose values are observed
    observation.py       what a run of variants observed, and how two runs differ
    plan.py              what is known before any candidate: calls to make, tests that show the fault
    lookup.py            the control: the initial files with a table of gold's answers to the tests' calls
    reference_runs.py    what gold and the control answer, and whether that tells right from wrong
    judge.py             the judgement: fresh inputs from a new seed, gold twice, the candidate once

The judged code shares no process, file system, descriptor or user with the judge, which imports none of it.
"""
