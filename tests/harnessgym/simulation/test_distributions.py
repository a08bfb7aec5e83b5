import numpy as np
import pytest

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.simulation.distributions import Distribution


def drawn(text, count=200_000):
    return Distribution.model_validate(text).draw(np.random.default_rng(0), count)


@pytest.mark.parametrize("text", [7, "7", "7.0", "constant:7", "lognormal:7:0.8", "pareto:7:3.5"])
def test_the_mean_is_what_is_asked_for(text):
    found = drawn(text)
    assert found.min() > 0
    assert found.mean() == pytest.approx(7, rel=0.03)


def test_the_shape_is_what_is_asked_for():
    assert np.log(drawn("lognormal:7:0.8")).std() == pytest.approx(0.8, rel=0.02)
    tail = drawn("pareto:7:2.0")
    assert (tail > 35).mean() == pytest.approx((3.5 / 35) ** 2, rel=0.1), "P(X > x) = (x_m / x)^alpha"


def test_what_is_too_large_is_cut_and_the_mean_with_it():
    assert drawn("lognormal:100:1.0:150").max() == 150
    assert Distribution.model_validate("lognormal:100:1.0:150").expected() == pytest.approx(
        drawn("lognormal:100:1.0:150").mean(), rel=0.02
    )


def test_recorded_values_are_drawn_again():
    found = Distribution(kind="recorded", values=(1.0, 2.0, 9.0)).draw(np.random.default_rng(0), 30_000)
    assert set(found) == {1.0, 2.0, 9.0}
    assert found.mean() == pytest.approx(4.0, rel=0.03)


def test_equal_seeds_draw_equal_values():
    distribution = Distribution.model_validate("pareto:7:1.5")
    first, again = (distribution.draw(np.random.default_rng(3), 9) for _ in range(2))
    assert (first == again).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lognormal:many", "cannot read"),
        ("pareto:5:1", "has no mean"),
        ("recorded", "nothing was recorded"),
        ("normal:5", "kind"),
    ],
)
def test_what_cannot_be_drawn_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        validate(Distribution, text, "here")
