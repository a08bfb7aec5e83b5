"""Orders to the engine's thread: work that is done there, or dropped if the engine stops first."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from harnessgym.errors import HarnessGymError, UpstreamError


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """Work for the engine's thread, and its replacement if the engine stops first. Both run on that
    thread.
    """

    do: Callable[[], None]
    drop: Callable[[], None]


def promise(
    done: Future[None], work: Callable[[], None], stopped: Callable[[], UpstreamError]
) -> EngineOrder:
    """An order that sets a future to the work's outcome, or to `stopped()`. The work of a cancelled future is
    skipped.
    """

    def do() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            work()
        except (HarnessGymError, RuntimeError) as error:
            done.set_exception(error)
        except Exception as error:
            done.set_exception(UpstreamError(f"The engine has failed: {error!r}. Restart it."))
            raise
        else:
            done.set_result(None)

    def drop() -> None:
        if done.set_running_or_notify_cancel():
            done.set_exception(stopped())

    return EngineOrder(do, drop)
