"""Visits for tests of selectors: made by hand, or by a world that knows every task's success rate."""

import numpy as np

from harnessgym.scheduling.selection import SelectionPool, Visit, make_selector


def pool(tasks=8, group_size=8, groups_per_step=4, seed=0):
    return SelectionPool(tuple(f"t{place}" for place in range(tasks)), group_size, groups_per_step, seed)


def visit(task, successes, size=8, version=0, **more):
    return Visit(task, size, version, (1.0,) * successes + (0.0,) * (size - successes), **more)


def play(name, rates, groups, *, at_once=1, settings=None, group_size=8, per_step=4, seed=0, open_groups=0):
    """All visits after `groups` were chosen, `at_once` at a time, of tasks that succeed at fixed rates.

    The last `open_groups` are always open: their rewards come when others have been chosen.
    """
    own = pool(len(rates), group_size, per_step, seed)
    selector, random, done = make_selector(name, settings or {}, own), np.random.default_rng(seed), []
    while len(done) < groups:
        ended = len(done) - open_groups
        shown = [
            item if place < ended else Visit(item.task, item.size, 0, open=True)
            for place, item in enumerate(done)
        ]
        for pick in selector.choose(len(done), min(at_once, groups - len(done)), shown):
            rate = rates[own.tasks.index(pick.task)]
            version = len(done) // per_step
            done.append(visit(pick.task, int(random.binomial(pick.rollouts, rate)), pick.rollouts, version))
    return done


def share(visits, tasks):
    """Of the rollouts, those that some tasks got."""
    return sum(item.size for item in visits if item.task in tasks) / sum(item.size for item in visits)
