"""Disguises: the same effect with another hook point, trigger and hiding place, drawn by seed."""

import random
from collections.abc import Mapping
from itertools import product

from harnessgym.grading.cheats import answers, disturbance, judge_process
from harnessgym.grading.cheats.cheat import Cheat
from harnessgym.grading.cheats.composition import HIDINGS, HOOKS, TRIGGERS, Composition
from harnessgym.grading.cheats.effect import Effect

EFFECTS: Mapping[str, Effect] = {
    effect.name: effect for module in (judge_process, answers, disturbance) for effect in module.EFFECTS
}
"""Name to effect, ordered by attack class within each module."""


def plain(effect: Effect) -> Cheat:
    """The effect without a disguise."""
    return Composition(effect, effect.triggers[0], "plain", effect.hooks[0]).cheat(effect.name)


PLAIN: tuple[Cheat, ...] = tuple(plain(effect) for effect in EFFECTS.values())


def compositions(name: str, seed: int, n: int) -> tuple[Composition, ...]:
    """`n` different compositions of an effect whose parts fit each other; fewer if there are not so many.

    The same ones for the same seed, and the first of them whatever `n` is.
    """
    effect = EFFECTS[name]
    draw = random.Random(f"{seed} {name}")
    all_ = [
        Composition(effect, trigger, hiding, hook, f"{seed} {hook} {trigger} {hiding}")
        for hook, trigger, hiding in product(HOOKS, TRIGGERS, HIDINGS)
    ]
    fitting = [each for each in all_ if each.works]
    return tuple(draw.sample(fitting, len(fitting))[:n])


def disguises(cheat: Cheat, seed: int, n: int) -> tuple[Cheat, ...]:
    """`n` disguises of a cheat, named `NAME@SEED.NUMBER`. None if the cheat is no composition."""
    if cheat.name not in EFFECTS:
        return ()
    drawn = compositions(cheat.name, seed, n)
    return tuple(each.cheat(f"{cheat.name}@{seed}.{number}") for number, each in enumerate(drawn))
