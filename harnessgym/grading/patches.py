"""Patches as text: reads the paths that they touch from their headers, and builds patches that add files."""

import re
from collections.abc import Iterator, Mapping

from harnessgym.errors import TaskError

_HUNK = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_PLAIN = re.compile(r"(?!/)[^\x00-\x1f\x7f\"\\]+\Z")
"""Paths that git writes without quotes when `core.quotePath` is off."""
_RENAMED = ("rename from ", "rename to ", "copy to ")


def patch_bytes(patch: str) -> bytes:
    """A patch as bytes, with a final line end: data sets drop it, and `git apply` needs it."""
    return (patch if patch.endswith("\n") else f"{patch}\n").encode()


def new_files(files: Mapping[str, str]) -> str:
    """A git diff that adds files, given as path to text, byte for byte.

    Raises TaskError for a path that a diff cannot name.
    """
    return "".join(_new_file(path, files[path]) for path in sorted(files))


def _new_file(path: str, text: str) -> str:
    if _PLAIN.match(path) is None or ".." in path.split("/"):
        raise TaskError(
            f"{path!r} is no path that a patch can make. Use a relative one without quotes and control "
            "characters."
        )
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
    if not text:
        return head
    lines = text.split("\n")
    ended = not lines[-1]
    lines = lines[:-1] if ended else lines
    count = "" if len(lines) == 1 else f",{len(lines)}"
    # As git does it: a tab ends a file name with a space, or `patch` reads the rest of it as a time.
    tab = "\t" if " " in path else ""
    body = "".join(f"+{line}\n" for line in lines)
    end = "" if ended else "\\ No newline at end of file\n"
    return f"{head}--- /dev/null\n+++ b/{path}{tab}\n@@ -0,0 +1{count} @@\n{body}{end}"


def patched_paths(patch: str) -> tuple[str, ...]:
    """Every path that a git diff adds, changes, removes or renames, in order. Includes binary files."""
    return tuple(dict.fromkeys(path for line in _headers(patch) for path in _of_header(line.rstrip("\r"))))


def _headers(patch: str) -> Iterator[str]:
    """The lines outside of hunks."""
    # A removed line `-- a/x` stands in a hunk as `--- a/x`, which looks like a header. So the line counts
    # of each hunk's header decide where it ends.
    old = new = 0
    for line in patch.split("\n"):
        if old > 0 or new > 0:
            old -= not line.startswith(("+", "\\"))
            new -= not line.startswith(("-", "\\"))
        elif match := _HUNK.match(line):
            old, new = (1 if count is None else int(count) for count in match.groups())
        else:
            yield line


def _of_header(line: str) -> Iterator[str]:
    if line.startswith(("--- ", "+++ ")):
        path = _unquoted(line[4:].split("\t", maxsplit=1)[0])
        if path.startswith(("a/", "b/")):
            yield path[2:]
    elif line.startswith(_RENAMED):
        yield _unquoted(line.split(" ", 2)[2])
    elif line.startswith("diff --git "):
        yield from _of_git_line(line.removeprefix("diff --git "))


def _of_git_line(rest: str) -> Iterator[str]:
    """The path in `a/x b/x`, the only line that names a binary file or a change of the mode alone."""
    # Unquoted names may hold spaces, so there is no separator to split at. The two halves are equal unless
    # the file was renamed, and renames have lines of their own.
    quoted = _QUOTED.findall(rest)
    if len(quoted) == 2:
        yield from (_unquoted(f'"{each}"')[2:] for each in quoted)
    elif len(rest) % 2 and rest[: len(rest) // 2].removeprefix("a/") == rest[
        len(rest) // 2 + 1 :
    ].removeprefix("b/"):
        yield rest[: len(rest) // 2].removeprefix("a/")


def _unquoted(name: str) -> str:
    match = _QUOTED.fullmatch(name.strip())
    if match is None:
        return name

    def character(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code, 8)) if len(code) == 3 else _LETTERS.get(code, code)

    # Git escapes single bytes in octal, so each character is a byte here; together they are UTF-8.
    text = _ESCAPE.sub(character, match[1])
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text
