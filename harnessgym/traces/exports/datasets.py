"""Training rows as a Hugging Face dataset: a folder for `datasets.load_dataset(FOLDER)` or for the Hub.

README.md                 the card, which names the configuration and its files
data/train-00000.parquet  the rows in the format `parquet`
"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from harnessgym.errors import ConfigError
from harnessgym.traces.atomic_files import replacing
from harnessgym.traces.export import TellsPolicies, TracedRollout
from harnessgym.traces.exports.parquet import rows, write_rows

_CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
tags:
- reinforcement-learning
- agent-traces
---

Training rows of recorded agent rollouts: token ids, mask, behaviour logprobs and policy versions, one row
per branch. `ids`, `mask`, `logprobs` and `versions` have one entry a token; mask is 1 where the policy
sampled the token and the row trains it, logprob is 0.0 and version -1 elsewhere. `policy` names the policy of
a row, where several were trained.
"""


class Datasets:
    """One folder."""

    tells_policies: ClassVar[TellsPolicies] = "rows"
    takes_experts: ClassVar = True

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the dataset.

        Raises `ConfigError` if `out` is a file or a folder that is not empty, or if pyarrow is missing.
        """
        if out.is_file():
            raise ConfigError(f"{out} is a file; a dataset is a folder. Name a new one.")
        with replacing(out) as part:
            (part / "data").mkdir(parents=True)
            (part / "README.md").write_text(_CARD, encoding="utf-8")
            return write_rows(
                (row for rollout in rollouts for row in rows(rollout)), part / "data" / "train-00000.parquet"
            )
