"""Trace contracts as a reward: 1.0 if a rollout kept them all, else 0.0 with the steps that broke one."""

from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread
from pydantic import model_validator

from harnessgym.config import Config, load_config
from harnessgym.reward import Need, RewardContext, Score
from harnessgym.traces.contracts import Contract, Contracts, check
from harnessgym.traces.step import steps_of


class ContractSettings(Config):
    """The contracts to check; see `harnessgym.traces.contracts`."""

    contracts: tuple[Contract, ...] = ()
    file: Path | None = None
    """TOML file with more contracts."""
    channel: str = "process.contract"
    spans: bool = False
    """Whether steps known only from the harness's own spans count, such as approvals and safety events.
    Programs that the policy runs in the sandbox can send spans too, so use this only where they cannot or are
    watched.
    """

    @model_validator(mode="after")
    def _some(self) -> "ContractSettings":
        if not self.contracts and self.file is None:
            raise ValueError("give contracts, or a file of them")
        return self


class ContractReward:
    """Checks the recorded steps."""

    settings = ContractSettings
    needs: frozenset[Need] = frozenset()

    def __init__(self, settings: ContractSettings) -> None:
        """Raises `ConfigError` for a file that cannot be read."""
        more = () if settings.file is None else load_config(Contracts, settings.file).contracts
        self._contracts = (*settings.contracts, *more)
        self._channel = settings.channel
        self._spans = settings.spans

    async def score(self, record: RewardContext) -> Sequence[Score]:
        """One score for the rollout."""
        violations = await anyio.to_thread.run_sync(
            lambda: check(self._contracts, steps_of(record.graph, self_reported=self._spans))
        )
        detail = "\n".join(map(str, violations)) or None
        return [Score("rollout", "", self._channel, 0.0 if violations else 1.0, detail)]
