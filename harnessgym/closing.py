"""What has connections to close, as an asynchronous context manager."""

from types import TracebackType
from typing import Self


class Closing:
    """`async with` closes at its end: for classes that have an `aclose`."""

    async def aclose(self) -> None:
        """Let go of what is open."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
