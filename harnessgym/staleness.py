"""The only definition of staleness, used by proxy, node, trainer and simulator alike.

The staleness of a token is (the version being trained) - (the version that sampled it); of a batch, the maximum over its
trained tokens. The version being trained is the one the step starts from. One version is one consumed batch.
"""

from collections.abc import Iterable

from harnessgym.tokens import IdArray


def token_staleness(trained_version: int, sampled_version: int) -> int:
    """How many versions old a token is when it is trained."""
    return trained_version - sampled_version


def batch_staleness(trained_version: int, versions: Iterable[IdArray]) -> int:
    """The oldest token's staleness over arrays of sampling versions, -1 marking tokens not sampled. 0 for an empty batch."""
    oldest = [int(array[array >= 0].min()) for array in versions if (array >= 0).any()]
    return token_staleness(trained_version, min(oldest)) if oldest else 0
