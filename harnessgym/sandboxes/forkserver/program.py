"""Runs an unmodified Python program in the forked interpreter, as `python program.py ...` would."""

import atexit
import os
import runpy
import signal
import sys
import threading
import traceback
from typing import NoReturn

from .wire import ForkOrder


def run(order: ForkOrder) -> NoReturn:
    """Never returns: either the harness takes this process over, or it ends with the harness's exit code."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(order.cwd)
    if not order.python:
        _execute(order)
    os.environ.clear()
    os.environ.update(order.env)
    code = _main(order.argv[1:])
    os._exit(code)


def _execute(order: ForkOrder) -> NoReturn:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(order.argv[0], order.argv, order.env)  # noqa: S606
    except OSError as error:
        os.write(2, f"{order.argv[0]}: {error.strerror}\n".encode())
        os._exit(126 if isinstance(error, PermissionError) else 127)


def _main(arguments: list[str]) -> int:
    """The interpreter's own sequence: run, wait for threads, exit handlers, flush. Module teardown is left
    out.
    """
    code = _guarded(arguments)
    # `join` would miss threads started late.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    return code


def _guarded(arguments: list[str]) -> int:
    try:
        _run_main(arguments)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)  # noqa: T201
        return 1
    # As the interpreter does with an exception that the program does not catch.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def _run_main(arguments: list[str]) -> None:
    _reseed()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(arguments)
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
    runpy.run_path(arguments[0], run_name="__main__")


def _reseed() -> None:
    """`random` reseeds itself after a fork; numpy, where the warm-up loaded it, does not."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
