"""The loss denominators against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.traces.trajectories import Row
from trainers.losses.normalisation import Constant, Normalisation, token_weights

MASKS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=6)


def row(mask: list[int], rollout_id: str) -> Row:
    length = len(mask)
    zeros = np.zeros(length, dtype=np.int32)
    return Row(
        rollout_id, "group", zeros, np.array(mask, dtype=np.int32), np.zeros(length, dtype=np.float32), zeros
    )


@given(MASKS)
def test_token_weights_share_one_among_all_tokens(masks: list[list[int]]) -> None:
    weights = token_weights([row(mask, str(index)) for index, mask in enumerate(masks)], "token")
    total = sum(map(sum, masks))
    for mask, weight in zip(masks, weights, strict=True):
        np.testing.assert_allclose(weight, [bit / max(total, 1) for bit in mask], rtol=1e-6)


@given(MASKS)
def test_rollout_weights_share_one_among_rollouts_then_tokens(masks: list[list[int]]) -> None:
    weights = token_weights([row(mask, str(index)) for index, mask in enumerate(masks)], "rollout")
    for mask, weight in zip(masks, weights, strict=True):
        np.testing.assert_allclose(weight, [bit / len(masks) / max(sum(mask), 1) for bit in mask], rtol=1e-6)


@given(MASKS)
def test_a_constant_length_is_in_place_of_every_rollouts_own(masks: list[list[int]]) -> None:
    weights = token_weights([row(mask, str(index)) for index, mask in enumerate(masks)], Constant(length=7))
    for mask, weight in zip(masks, weights, strict=True):
        np.testing.assert_allclose(weight, [bit / len(masks) / 7 for bit in mask], rtol=1e-6)


@pytest.mark.parametrize("normalisation", ["token", "rollout", Constant(length=7)])
@given(masks=MASKS, data=st.data())
def test_splitting_a_rollout_into_rows_leaves_every_weight(
    normalisation: Normalisation, masks: list[list[int]], data: st.DataObject
) -> None:
    whole = [row(mask, str(index)) for index, mask in enumerate(masks)]
    split = []
    for index, mask in enumerate(masks):
        sides = data.draw(st.lists(st.booleans(), min_size=len(mask), max_size=len(mask)))
        split += [
            row([bit * (side == keep) for bit, side in zip(mask, sides, strict=True)], str(index))
            for keep in (True, False)
        ]
    parts = token_weights(split, normalisation)
    for index, weight in enumerate(token_weights(whole, normalisation)):
        np.testing.assert_array_equal(parts[2 * index] + parts[2 * index + 1], weight)
