"""`harnessgym watch`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

_EPILOG = """It only reads: whoever serves the run does not notice. `--once` prints the whole panel once, also
where there is no terminal.

Examples:

`harnessgym watch runs/quickstart`

`harnessgym watch runs/quickstart --once`

Exit status: 0 the run has ended or you interrupted; 2 an error."""

_BETWEEN_S = 0.5
_WHOLE = 1_000
"""Height in lines, more than the panel ever has."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("watch", epilog=_EPILOG)
    def command(
        run: Annotated[Path, typer.Argument(help="Folder of the run.")],
        once: Annotated[bool, typer.Option("--once", help="Look once, print, and exit.")] = False,
    ) -> None:
        """Watch a run that another process serves, or look at one that has ended: the dashboard of
        `harnessgym train`.
        """
        import contextlib

        from rich.console import Console

        from harnessgym.process import hear_interruptions

        hear_interruptions()
        with contextlib.suppress(KeyboardInterrupt):
            _watch(run, Console(), once=once)


def _watch(run: Path, console: "Console", *, once: bool) -> None:
    import time

    from harnessgym.cli.live_view import Dashboard
    from harnessgym.cli.run_panel import panel
    from harnessgym.run_folder import RunFolder
    from harnessgym.store import TraceStore
    from harnessgym.supervisor.progress import RunObserver

    folder = RunFolder(run.resolve())
    with TraceStore.open(folder.store_url()) as store:
        observer = RunObserver(folder, store)
        progress = observer.look()
        if once:
            if progress.processors:  # CPU use is measured between two looks
                time.sleep(_BETWEEN_S)
                progress = observer.look()
            console.print(panel(progress, console.width, _WHOLE))
            return
        # This loop draws each look itself, so it needs no rate limit.
        with Dashboard(console, observer.look) as dashboard:
            dashboard.draw(progress)
            while progress.status not in ("done", "failed"):
                time.sleep(1.0)
                progress = observer.look()
                dashboard.draw(progress)
