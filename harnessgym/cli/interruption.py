"""Commands that go on in the same folder: the first Ctrl-C or SIGTERM ends them in order, and they say
that they go on.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def run_until_told(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, or exit with status 130. Further interruptions do not disturb the end."""

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, _once(task.cancel))
        return await work

    try:
        return asyncio.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("Interrupted. The same command goes on from here.", err=True)
        raise SystemExit(130) from None


def _once(act: Callable[[], Any]) -> Callable[[], None]:
    told: list[bool] = []

    def first() -> None:
        if not told:
            told.append(True)
            act()

    return first
