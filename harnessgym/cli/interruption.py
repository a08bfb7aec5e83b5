"""Interrupts commands that can be resumed: the first Ctrl-C or SIGTERM ends them cleanly."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, or exit with status 130. Signals after the first are ignored."""

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        # A second cancellation would interrupt the clean-up that the first one started.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, _once(task.cancel))
        return await work

    try:
        return asyncio.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("Interrupted. The same command goes on from here.", err=True)
        raise SystemExit(130) from None


def _once(act: Callable[[], Any]) -> Callable[[], None]:
    called = False

    def first() -> None:
        nonlocal called
        if not called:
            called = True
            act()

    return first
