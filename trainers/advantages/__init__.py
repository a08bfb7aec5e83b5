"""Advantage estimators: from one group of rollouts, as stored, to an advantage for every row.

`estimator` is the seam. An estimator that looks at one reward per rollout alone is a pure function, rewards
[G] -> advantages [G]; the others are classes, named after their method, that hold their settings. What each
computes is in docs/algorithms.md.
"""
