"""The optimizer steps on a batch, each on some of its rollouts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.traces.trajectories import Row
from trainers.mini_batches import means, mini_batches
from trainers.update_settings import UpdateSettings


@given(data=st.data())
def test_in_every_epoch_each_rollout_is_in_one_update_with_all_its_rows(data):
    settings = UpdateSettings(epochs=data.draw(st.integers(1, 3)), mini_batches=data.draw(st.integers(1, 4)))
    trained = data.draw(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12))
    masks = [np.array([0, int(each)], np.int32) for _, each in trained]
    rows = [
        Row(f"r{name}", "g", mask, mask, np.zeros(2, np.float32), mask - 1)
        for (name, _), mask in zip(trained, masks, strict=True)
    ]
    learns = {f"r{name}" for name, each in trained if each}
    parts = list(mini_batches(rows, settings, [0, 3]))
    assert sorted(at for part in parts for at in part) == sorted(
        at for at, row in enumerate(rows) for _ in range(settings.epochs) if row.rollout_id in learns
    )
    for part in parts:
        held = {rows[at].rollout_id for at in part}
        assert part == [at for at, row in enumerate(rows) if row.rollout_id in held]
        assert any(rows[at].mask.any() for at in part)
    assert len(parts) == settings.epochs * min(settings.mini_batches, len(learns))
    assert parts == list(mini_batches(rows, settings, [0, 3]))


def test_metrics_of_steps_are_averaged():
    assert means([{"loss": 1.0, "kl": 0.0}, {"loss": 2.0, "kl": 1.0}]) == {"loss": 1.5, "kl": 0.5}
    assert means([]) == {}
