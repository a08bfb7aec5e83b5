"""`harnessgym tasks run`."""

import asyncio
import posixpath
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import typer

from harnessgym.cli.tasks.arguments import AsJson, Backend, Hidden, Spec, TaskId

if TYPE_CHECKING:
    from pathlib import Path

    from harnessgym.grading.cheats.scripted_agent import CheatResult
    from harnessgym.sandbox import Sandbox
    from harnessgym.task import Task

_WELCOME = """\
Each line is run by sh in the agent's sandbox; the folder is kept from line to line, variables are not.
There is no terminal inside. `exit` or Ctrl-D grades what is left."""
_LINE = (
    'cd -- "$1" 2>/dev/null; mark=$2; eval "$3"; status=$?; printf "\\n%s%s\\n" "$mark" "$PWD"; exit $status'
)


class Act(Protocol):
    """An action in a sandbox."""

    output: bytes
    """Its output."""

    async def __call__(self, sandbox: "Sandbox") -> None:
        """Run it. A command that fails is not an error."""
        ...


class Command:
    """One command. Its output is shown as it arrives."""

    def __init__(self, words: Sequence[str], timeout_s: float | None, quiet: bool) -> None:
        self.output = b""
        self._words = words
        self._timeout_s = timeout_s
        self._quiet = quiet

    async def __call__(self, sandbox: "Sandbox") -> None:
        """See `Act`."""
        done = await sandbox.exec(
            self._words, timeout_s=self._timeout_s, on_output=None if self._quiet else _show
        )
        self.output = done.stdout + done.stderr
        if not self._quiet and not done.ok:
            sys.stderr.write(f"[{done.ending}]\n")


class Lines:
    """Commands read line by line from the terminal."""

    def __init__(self, timeout_s: float | None, read: Callable[[str], str] = input) -> None:
        self.output = b""
        self._timeout_s = timeout_s
        self._read = read
        self._folder = "."

    async def __call__(self, sandbox: "Sandbox") -> None:
        """See `Act`."""
        sys.stderr.write(f"{_WELCOME}\n")
        while (line := await asyncio.to_thread(self._asked)) is not None:
            if line.strip():
                await self._run(sandbox, line)

    def _asked(self) -> str | None:
        try:
            line = self._read(f"{posixpath.basename(self._folder)}$ ")
        except EOFError:
            return None
        return None if line.strip() == "exit" else line

    async def _run(self, sandbox: "Sandbox", line: str) -> None:
        # Each line runs in a new shell. The shell prints a random mark and its folder last, so that the next
        # line begins there; output cannot guess the mark.
        mark = secrets.token_hex(8)
        words = ["sh", "-c", _LINE, "sh", self._folder, mark, line]
        shown = _Shown(mark.encode())
        done = await sandbox.exec(words, timeout_s=self._timeout_s, on_output=shown)
        shown.end()
        before, marked, folder = done.stdout.rpartition(mark.encode())
        self.output += (before[:-1] if marked else done.stdout) + done.stderr
        if marked:
            self._folder = folder.strip().decode(errors="replace") or "."
        if not done.ok:
            sys.stderr.write(f"[{done.ending}]\n")


class _Shown:
    """Shows output on the terminal, except the last line of stdout, which has the shell's folder."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._held = b""

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        """Show everything except what may be the beginning of the mark's line."""
        if stream == "stderr":
            _show(stream, data)
            return
        # The mark may arrive in two pieces. Its line begins with a newline, so the last line is held back.
        self._held += data
        cut = self._held.rfind(b"\n", 0, max(0, len(self._held) - 1))
        if self._mark not in self._held and cut > 0:
            _show(stream, self._held[:cut])
            self._held = self._held[cut:]

    def end(self) -> None:
        """Show the rest, without the mark's line."""
        rest = self._held.rpartition(b"\n" + self._mark)[0] if self._mark in self._held else self._held
        _show("stdout", rest if not rest or rest.endswith(b"\n") else rest + b"\n")


def _show(stream: Literal["stdout", "stderr"], data: bytes) -> None:
    out = sys.stdout if stream == "stdout" else sys.stderr
    out.write(data.decode(errors="replace"))
    out.flush()


_EPILOG = """The command runs where an agent would: with the task's files, after its set-up, as its user,
without a network. What is left then is graded as an agent's work is. Without a command, on a terminal, lines
are read and run one by one.

Examples:

`harnessgym tasks run shell free-slots`

`harnessgym tasks run shell free-slots -- sh -c 'ls -la; cat README.md'`

`harnessgym tasks run my_tasks/ running-total --gold --sandbox docker`

JSON: {task, reward, tampered, error, evidence, seconds, output}.

Exit status: 0 the reward is 1 or more; 1 it is less, or there is no verdict; 2 an error."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("run", epilog=_EPILOG)
    def command(
        spec: Spec,
        task: TaskId,
        words: Annotated[
            list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="What is run.")
        ] = None,
        sandbox: Backend = "bubblewrap",
        hidden: Hidden = None,
        gold: Annotated[bool, typer.Option("--gold", help="Run the solution.")] = False,
        nothing: Annotated[bool, typer.Option("--nothing", help="Run nothing.")] = False,
        timeout: Annotated[
            float | None, typer.Option(help="Seconds for the command; else the task's limit.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Do a task by hand: run a command in the agent's place, and see what the grader says."""
        import asyncio

        from harnessgym.cli.tasks.run import Command, Lines
        from harnessgym.cli.traces.printed import print_json
        from harnessgym.errors import ConfigError
        from harnessgym.tasks.source import all_tasks, named, task_set

        asked = sum((bool(words), gold, nothing))
        if asked > 1 or (not asked and not sys.stdin.isatty()):
            raise ConfigError(
                "Say what to run: one of `-- COMMAND...`, --gold and --nothing; on a terminal, none is a "
                "shell."
            )
        chosen = named(all_tasks(task_set(spec)), task)
        quiet = as_json or gold or nothing
        act: Act | None = (
            None if gold or nothing else Command(words, timeout, quiet) if words else Lines(timeout)
        )
        result = asyncio.run(_judged(chosen, sandbox, tuple(hidden or ()), act, gold=gold))
        if as_json:
            print_json(_as_json(result, b"" if act is None else act.output))
        else:
            _print(result)
        if result.reward is None or result.reward < 1.0:
            raise typer.Exit(1)


async def _judged(
    task: "Task", sandbox: str, hidden: "tuple[Path, ...]", act: "Act | None", *, gold: bool
) -> "CheatResult":
    """Run the action in the agent's place and grade the result."""
    import tempfile
    from pathlib import Path

    from harnessgym.cli.tasks.check import backend
    from harnessgym.grading.cheats.scripted_agent import ScriptedAgent
    from harnessgym.sandbox import needs, require

    with tempfile.TemporaryDirectory(prefix="harnessgym-task-") as folder:
        async with backend(sandbox, Path(folder), hidden) as opened:
            require(opened.capabilities, needs(task))
            runs = ScriptedAgent(opened)
            if gold:
                return await runs.gold(task)
            return await (runs.nothing(task) if act is None else runs.act(task, "(command)", act))


def _as_json(result: "CheatResult", output: bytes) -> dict[str, Any]:
    names = ("task", "reward", "tampered", "error", "evidence", "seconds")
    return {**{name: getattr(result, name) for name in names}, "output": output.decode(errors="replace")}


def _print(result: "CheatResult") -> None:
    import json

    from harnessgym.cli.traces.printed import console

    out = console()
    if result.reward is None:
        out.print(f"no verdict: {result.error}", style="bold red", markup=False, soft_wrap=True)
    else:
        style = "bold green" if result.reward >= 1.0 else "bold red"
        out.print(f"reward {result.reward:g}", style=style, markup=False)
    if result.tampered is not None:
        out.print(f"tampered with: {result.tampered}", markup=False, soft_wrap=True)
    checks = result.evidence.get("checks")
    for check in checks if isinstance(checks, list) else ():
        passed = "passed" if check.get("passed") else "failed"
        out.print(
            f"  {check.get('name', '?')}: {passed}. {check.get('detail') or ''}".rstrip(" ."),
            markup=False,
            soft_wrap=True,
        )
    rest = {
        key: value
        for key, value in result.evidence.items()
        if key != "checks" or not isinstance(checks, list)
    }
    if rest:
        out.print(f"  {json.dumps(rest, ensure_ascii=False, default=str)}", markup=False, soft_wrap=True)
