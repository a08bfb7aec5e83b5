"""`harnessgym images list|build|gc`."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from harnessgym.sandboxes.images.gc import Built

app = typer.Typer(
    no_args_is_help=True,
    help="Container images for sandboxes: built here, from packages, without a registry.",
)

_BUILD = """Recipes are in `docker/`: base, python, node, proxy, trainer. A harness's image is its recipe's
with the agent installed as layers. What is there is not built again, and several processes that want one
image build it once.

Examples: `harnessgym images build python` · `harnessgym images build --harness mini_swe_agent --harness
claude_code`"""
_GC = """Only images that were built here are looked at. Those with a name of their own are kept (`docker tag`
keeps one for good), as are those that a container uses. What is removed is built again when it is next
wanted."""


@app.command("list")
def show() -> None:
    """List the images that were built here: what they are, how large, when they were last used."""
    import time

    from rich.table import Table

    from harnessgym.cli.traces.printed import console as stdout
    from harnessgym.sandboxes.images.connection import EngineConnection
    from harnessgym.sandboxes.images.gc import built
    from harnessgym.sandboxes.images.recipes import names, recipe_image

    with EngineConnection() as engine:
        images = built(engine)
    table = Table("image", "size", "last used", "last layer", title_justify="left")
    for image in images:
        table.add_row(
            _name(image), f"{image.size / 1e6:,.0f} MB", _ago(time.time() - image.used), image.title[:70]
        )
    console = stdout()
    console.print(table)
    there = {name for image in images for name in image.names}
    if missing := [name for name in names() if f"{recipe_image(name)}:latest" not in there]:
        console.print(
            f"Not built: {', '.join(missing)}. Build one: harnessgym images build {missing[0]}", markup=False
        )


@app.command("build", epilog=_BUILD)
def build(
    recipes: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE...", help="Recipes; see below.")
    ] = None,
    harness: Annotated[
        list[str] | None,
        typer.Option("--harness", metavar="NAME", help="Also put this harness into its image. Repeatable."),
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Seconds that each step may take.")] = 3_600.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every line that steps print.")
    ] = False,
) -> None:
    """Build images from recipes, and images with a harness installed."""
    from rich.console import Console

    from harnessgym.errors import ConfigError
    from harnessgym.provisioning import image_of
    from harnessgym.sandboxes.images.build import build as build_recipe
    from harnessgym.sandboxes.images.builder import Builder
    from harnessgym.sandboxes.images.connection import EngineConnection
    from harnessgym.sandboxes.images.layers import ensure

    if not recipes and not harness:
        raise ConfigError(
            "Name what to build: recipes, or --harness NAME. `harnessgym images build --help` lists them."
        )
    console = Console(stderr=True)
    done = Console()
    with EngineConnection() as engine, console.status("...") as status:

        def say(line: str) -> None:
            if verbose:
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            status.update(_short(line, console))

        for name in recipes or ():
            done.print(
                f"{name}: {build_recipe(name, Builder(engine, say=say, timeout_s=timeout_s))}", soft_wrap=True
            )
        for name in harness or ():
            image, steps = image_of(name)
            done.print(
                f"{name}: {ensure(image, steps, say=say, timeout_s=timeout_s, engine=engine)}", soft_wrap=True
            )


@app.command("gc", epilog=_GC)
def gc(
    days: Annotated[
        float, typer.Option(min=0.0, help="Remove what has not been used for so many days.")
    ] = 14.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove images that were built here and have not been used for long, and what killed builds left."""
    from rich.console import Console

    from harnessgym.sandboxes.images.connection import EngineConnection
    from harnessgym.sandboxes.images.gc import collect

    with EngineConnection() as engine:
        removed = collect(engine, older_s=days * 86_400, dry=dry_run)
    console = Console()
    for image in removed:
        console.print(f"{_name(image)}  {image.title}", markup=False, highlight=False)
    console.print(
        f"{'Would remove' if dry_run else 'Removed'} {len(removed)} image{'s' * (len(removed) != 1)}."
    )


def _name(image: "Built") -> str:
    own = [name for name in image.names if image.pinned and not name.startswith("harnessgym/layer:")]
    return (own or list(image.names) or [image.id[:19]])[0]


def _short(line: str, console: "Console") -> str:
    from rich.markup import escape

    return escape(" ".join(line.split())[: max(20, console.width - 4)])


def _ago(seconds: float) -> str:
    if seconds < 3_600:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3_600:.0f} h ago" if seconds < 172_800 else f"{seconds / 86_400:.0f} days ago"
