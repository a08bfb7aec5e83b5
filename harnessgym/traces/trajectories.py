"""Training rows: what a recorded rollout looks like to a trainer.

A row is one branch of the forest, flattened: token ids and a mask ("did the policy sample this token, and is it trained in
this row?"). There is no prompt/completion split. Where branches share a sampled segment, exactly one row trains it.
"""

from dataclasses import dataclass, field

from harnessgym.errors import TraceError
from harnessgym.tokens import FloatArray, IdArray


@dataclass(frozen=True, slots=True)
class Turn:
    """Row tokens [start, end) were sampled in one call."""

    start: int
    end: int
    call_id: str
    agent_id: str
    state_key: str = ""
    rewards: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One branch of one rollout. All arrays have the row's length T."""

    rollout_id: str
    group_id: str
    ids: IdArray
    """int32 [T]"""
    mask: IdArray
    """int32 [T], 1 where the token was sampled and is trained in this row"""
    logprobs: FloatArray
    """float32 [T], behaviour policy; 0.0 where mask is 0"""
    versions: IdArray
    """int32 [T], the policy version that sampled the token; -1 where mask is 0"""
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise TraceError(f"Rollout {self.rollout_id}: ids, mask, logprobs and versions differ in length: {sorted(lengths)}.")
        if self.logprobs[self.mask == 0].any():
            raise TraceError(f"Rollout {self.rollout_id}: a token that was not sampled carries a logprob.")
