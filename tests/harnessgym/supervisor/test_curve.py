"""The picture of a run, looked at as pixels."""

import numpy as np
import pytest
from matplotlib import colormaps, image

from harnessgym.supervisor.summary import draw_curve

SUMMARY = {"eta": 1, "max_staleness": 1, "rollouts": 8}
SAMPLED, GREEDY = colormaps["tab10"].colors[1:3]


def pixels(path, color, *, left):
    """How many pixels of the left or right edge of the curve are of a colour; the legend is between them."""
    picture = image.imread(path)[:, :, :3]
    width = picture.shape[1]
    part = picture[:, : width // 4] if left else picture[:, -width // 8 :]
    return int((np.abs(part - np.asarray(color)).max(axis=2) < 0.02).sum())


@pytest.mark.parametrize("height", [0.0, 0.5, 1.0])
def test_dots_at_the_same_height_are_both_seen(tmp_path, height):
    ends = {f"{key}_{when}": height for key in ("success", "greedy") for when in ("before", "after")}
    draw_curve(
        [{"step": 1, "reward": 0.3}, {"step": 2, "reward": 0.4}], SUMMARY | ends, tmp_path / "curve.png"
    )
    for color in (SAMPLED, GREEDY):
        assert pixels(tmp_path / "curve.png", color, left=True) > 20


def test_a_weighted_reward_is_drawn_beside_the_success(tmp_path):
    ends = {f"{key}_{when}": None for key in ("success", "greedy") for when in ("before", "after")}
    metrics = [{"step": step, "reward": -4.0 + step, "graded": 0.5} for step in (1, 2, 3)]
    draw_curve(metrics, SUMMARY | ends | {"trained_reward": {}}, tmp_path / "curve.png")
    graded, summed = colormaps["tab10"].colors[:2]
    assert pixels(tmp_path / "curve.png", graded, left=True) > 20
    assert pixels(tmp_path / "curve.png", summed, left=True) > 20
