"""`harnessgym watch`."""

from pathlib import Path
from typing import Annotated

import typer

_EPILOG = """It only reads: whoever serves the run does not notice. `--once` prints the whole panel once, also where there is no
terminal.

Examples:

`harnessgym watch runs/quickstart`

`harnessgym watch runs/quickstart --once`

Exit status: 0 the run has ended or you interrupted; 2 an error."""

_BETWEEN_S = 0.5
_WHOLE = 1_000
"""Lines: more than the panel ever has."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("watch", epilog=_EPILOG)
    def command(
        run: Annotated[Path, typer.Argument(help="Folder of the run.")],
        once: Annotated[bool, typer.Option("--once", help="Look once, print, and exit.")] = False,
    ) -> None:
        """Watch a run that another process serves, or look at one that has ended: the dashboard of `harnessgym train`."""
        import contextlib
        import time

        from rich.console import Console

        from harnessgym.cli.dashboard import Dashboard
        from harnessgym.cli.run_panel import panel
        from harnessgym.run_folder import RunFolder
        from harnessgym.store import TraceStore
        from harnessgym.supervisor.progress import Observer

        folder, console = RunFolder(run.resolve()), Console()
        with TraceStore.open(folder.store_url()) as store:
            observer = Observer(folder, store)
            if once:
                if observer.look().processors:  # what they take shows between two looks
                    time.sleep(_BETWEEN_S)
                console.print(panel(observer.look(), console.width, _WHOLE))
                return
            with contextlib.suppress(KeyboardInterrupt), Dashboard(console, observer.look) as dashboard:
                while True:
                    progress = observer.look()
                    dashboard.draw(progress)
                    if progress.status in ("done", "failed"):
                        return
                    time.sleep(1.0)
