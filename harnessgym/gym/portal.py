"""The only place where synchronous callers enter asynchronous code.

```python
with Portal() as portal:
    session = portal.call(client.open_session, rollout_id)
```
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from typing import ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """An event loop in its own thread while the context is open."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(start_blocking_portal())
        # Before any other call, so that no thread of the default executor exists.
        self.call(_use_own_threads)
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


class _OwnThreads(ThreadPoolExecutor):
    """Runs each call of `asyncio.to_thread` in its own daemon thread.

    The threads of `concurrent.futures` accept no work after the main thread has ended, but a portal may have
    to be closed after that.
    """

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - who waits for the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="portal-worker", daemon=True).start()
        return future


async def _use_own_threads() -> None:
    asyncio.get_running_loop().set_default_executor(_OwnThreads())
