"""`harnessgym doctor`."""

import typer


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("doctor")
    def command() -> None:
        """Check what this machine can do, and say how to get what is missing."""
        from importlib.util import find_spec

        from rich.console import Console

        from harnessgym.registry import load, names

        console = Console()
        for package, extra in (("torch", "train"), ("starlette", "proxy"), ("gymnasium", "envs"), ("openai", "examples")):
            ok = find_spec(package) is not None
            console.print(f"{package:12} {'found' if ok else f'missing: pip install harnessgym-rl[{extra}]'}", markup=False)
        for name in names("sandbox"):
            console.print(f"{name:12} {load('sandbox', name).unavailable() or 'usable'}", markup=False)
