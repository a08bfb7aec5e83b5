"""Where synchronous callers cross over to asynchronous code, and the only place.

```python
with Portal() as portal:
    session = portal.call(client.open_session, rollout_id)
```
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from typing import ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """An event loop in a thread of its own, for as long as the context is open."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(start_blocking_portal())
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function to its end and return its result."""
        assert self._portal is not None, "open the portal with `with` first"

        async def run() -> T:
            return await function(*args, **kwargs)

        return self._portal.call(run)

    def enter(self, manager: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """An asynchronous context manager as a synchronous one."""
        assert self._portal is not None, "open the portal with `with` first"
        return self._portal.wrap_async_context_manager(manager)
