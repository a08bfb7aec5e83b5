"""Distributions of durations and token counts, drawn many at a time."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from harnessgym.config import Config

Floats = npt.NDArray[np.float64]


class Distribution(Config):
    """A positive random quantity. Also written `600`, `lognormal:600:1.0` or `pareto:600:1.8[:MOST]`."""

    kind: Literal["constant", "lognormal", "pareto", "recorded"] = "lognormal"
    """`recorded` draws from `values`, with replacement."""
    mean: float = Field(1.0, ge=0)
    """Expected value before `most` is applied."""
    shape: float = Field(1.0, gt=0)
    """lognormal: sigma, the standard deviation of the logarithm. pareto: alpha, the tail index, above 1."""
    most: float | None = Field(None, gt=0)
    """Larger values are cut to this, as a token limit or a timeout does."""
    values: tuple[float, ...] = Field((), repr=False)
    """The recorded values."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, (int, float)):
            return {"kind": "constant", "mean": value}
        if not isinstance(value, str):
            return value
        kind, *numbers = value.split(":")
        if not numbers and kind.replace(".", "", 1).isdigit():
            return {"kind": "constant", "mean": float(kind)}
        try:
            return {"kind": kind, **dict(zip(("mean", "shape", "most"), map(float, numbers), strict=False))}
        except ValueError:
            raise ValueError(
                f"cannot read {value!r}: write a number, lognormal:MEAN:SIGMA or pareto:MEAN:ALPHA[:MOST]"
            ) from None

    @model_validator(mode="after")
    def _possible(self) -> "Distribution":
        if self.kind == "pareto" and self.shape <= 1:
            raise ValueError(
                f"a Pareto distribution with tail index {self.shape} has no mean: give one above 1"
            )
        if self.kind == "recorded" and not self.values:
            raise ValueError("nothing was recorded to draw from")
        return self

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw `count` values, float64 [count]."""
        if self.kind == "constant" or self.mean == 0:
            drawn = np.full(count, self.mean)
        elif self.kind == "lognormal":
            # The mean of a lognormal is exp(mu + sigma^2 / 2), so mu is shifted to give `mean`.
            drawn = rng.lognormal(np.log(self.mean) - self.shape**2 / 2, self.shape, count)
        elif self.kind == "pareto":
            drawn = self.mean * (self.shape - 1) / self.shape * (1 + rng.pareto(self.shape, count))
        else:
            drawn = rng.choice(np.asarray(self.values, dtype=np.float64), count)
        return drawn if self.most is None else np.minimum(drawn, self.most)

    def expected(self) -> float:
        """The mean. With `most` it is estimated from many draws."""
        if self.kind == "constant" or (self.kind != "recorded" and self.most is None):
            return self.mean if self.most is None else min(self.mean, self.most)
        return float(self.draw(np.random.default_rng(0), 100_000).mean())
