"""Stands in for apt-get, curl, uv, uvx and pip while a test script is graded, where nothing can be fetched.

Runs in a grading sandbox, under each of these names, with the interpreter of the environment that holds what
was put there ahead. What is there counts as installed; what is not is an error, and is written down for the
verifier if the test script itself asked for it: what the agent's code asks for is its own affair.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

VENV = sys.prefix
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
_WITH = {"-w", "--with", "--from", "--with-requirements"}
_TAKES_VALUE = {
    "-p", "--python", "-i", "--index-url", "--extra-index-url", "--index", "--default-index", "-t",
    "--target", "--prefix",
    "--root", "-c", "--constraint", "-f", "--find-links", "--directory", "--project", "-o", "--option",
    "--cache-dir",
    "--with-editable", "--env-file",
}  # fmt: skip
_LOCAL = re.compile(r"(\w+://)?(localhost|127\.|\[::1\]|0\.0\.0\.0)")
_INSTALLER = re.compile(r"astral\.sh/uv|/uv/")


def main(name: str, words: list[str]) -> int:
    """Answers as the program of that name."""
    if name in ("apt", "apt-get"):
        return apt(words)
    if name in ("curl", "wget"):
        return fetch(name, words)
    if name in ("pip", "pip3"):
        return pip(words)
    return run(words, tool=True) if name == "uvx" else uv(words)


def apt(words: list[str]) -> int:
    """`install` succeeds for what is installed; everything else does nothing."""
    names = [word for word in words if not word.startswith("-")]
    if names[:1] != ["install"]:
        return 0
    return missing([f"the Debian package {each}" for each in names[1:] if not packaged(each.split("=")[0])])


def packaged(name: str) -> bool:
    """Whether a Debian package is installed, or this program stands for it."""
    import subprocess

    if name in ("curl", "wget", "ca-certificates"):
        return True
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Status}", name], capture_output=True, text=True, check=False
    )
    return "install ok installed" in asked.stdout


def fetch(name: str, words: list[str]) -> int:
    """The installer of uv is an empty script; this machine can be reached by the real program, nothing
    else can.
    """
    urls = [word for word in words if "://" in word or _LOCAL.match(word)]
    if any(_INSTALLER.search(url) for url in urls):
        return empty(name, words)
    real = other(name)
    if not real:
        return missing([f"the program {name}"])
    if urls and not all(_LOCAL.match(url) for url in urls):
        return missing([f"{url} by {name}" for url in urls])
    return become(real, [name, *words])


def empty(name: str, words: list[str]) -> int:
    """Gives a script that does nothing, where the real program would put what it fetched."""
    option = "-o" if name == "curl" else "-O"
    glued = [word[2:] for word in words if word.startswith(option) and len(word) > 2]
    named = [
        words[at + 1]
        for at, word in enumerate(words[:-1])
        if word in (option, "--output", "--output-document")
    ]
    target = (glued + named + ["-"])[0]
    text = "# uv is there already\n"
    if target == "-" or any(re.fullmatch(r"-[a-zA-Z]*O-", word) for word in words):
        sys.stdout.write(text)
    else:
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)
    return 0


def pip(words: list[str]) -> int:
    """`install` succeeds for what is there; the rest is the real pip's."""
    verbs = [word for word in words if not word.startswith("-")]
    if verbs[:1] != ["install"]:
        return become(f"{VENV}/bin/python", ["python", "-m", "pip", *words])
    return missing(unmet(words[words.index("install") + 1 :]))


def uv(words: list[str]) -> int:
    """Installing succeeds for what is there; environments are the one that there is."""
    verbs = [word for word in words if not word.startswith("-")]
    if verbs[:2] == ["tool", "run"] or verbs[:1] == ["run"]:
        return run(words[words.index("run") + 1 :], tool=verbs[0] == "tool")
    if verbs[:2] in (["tool", "install"], ["pip", "install"]) or verbs[:1] == ["add"]:
        return missing(unmet(words[words.index("add" if verbs[0] == "add" else "install") + 1 :]))
    if verbs[:1] == ["venv"]:
        return environment(next(iter(verbs[1:]), ".venv"))
    if verbs[:1] == ["pip"]:
        return become(f"{VENV}/bin/python", ["python", "-m", *words[words.index("pip") :]])
    if not verbs or verbs[0] in ("init", "sync", "lock", "python", "self", "cache", "version"):
        sys.stdout.write("uv 0.0.0\n")
        return 0
    return missing([f"uv {' '.join(words)}"])


def environment(path: str) -> int:
    """A folder whose `bin/activate` leads to the one environment that there is."""
    os.makedirs(f"{path}/bin", exist_ok=True)
    with open(f"{path}/bin/activate", "w", encoding="utf-8") as file:
        file.write(
            f'VIRTUAL_ENV={VENV}; PATH="{VENV}/bin:$PATH"; export VIRTUAL_ENV PATH; deactivate() {{ :; }}\n'
        )
    for name in ("python", "python3"):
        if not os.path.lexists(f"{path}/bin/{name}"):
            os.symlink(f"{VENV}/bin/python", f"{path}/bin/{name}")
    return 0


def run(words: list[str], *, tool: bool) -> int:
    """Runs a command in the environment if it and what it is to have are there."""
    wanted = list[str]()
    source = False
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in _WITH | _TAKES_VALUE and not equals:
            value = rest.pop(0) if rest else ""
        if option == "--with-requirements":
            wanted += ["-r", value]
        elif option in _WITH:
            wanted += value.split(",")
            source = source or option == "--from"
    if tool and rest and not source:
        wanted.append(rest[0].replace("@latest", "").replace("@", "=="))
    lacking = unmet(wanted)
    if lacking or not rest:
        return missing(lacking)
    command = rest[0].split("@")[0] if tool else rest[0]
    os.environ |= {"VIRTUAL_ENV": VENV, "PATH": f"{VENV}/bin:{os.environ.get('PATH', '')}"}
    return become(command, [command, *rest[1:]])


def unmet(words: list[str]) -> list[str]:
    """The requirements among the words of a command that are not there."""
    missing_packages = list[str]()
    skip = False
    listed = False
    for word in words:
        if listed:
            missing_packages += unmet(lines(word))
        elif not skip and not word.startswith("-") and not met(word):
            missing_packages.append(f"the Python package {word}")
        skip = word in _TAKES_VALUE
        listed = word in ("-r", "--requirement")
    return missing_packages


def lines(path: str) -> list[str]:
    """The requirements in a file."""
    try:
        with open(path, encoding="utf-8") as file:
            return [text for line in file if (text := line.split("#")[0].strip())]
    except (OSError, ValueError):
        return [path]


def met(requirement: str) -> bool:
    """Whether the environment has it."""
    from pip._vendor.packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requirement)
        return (wanted.marker is not None and not wanted.marker.evaluate()) or wanted.specifier.contains(
            version(wanted.name), prereleases=True
        )
    except (InvalidRequirement, PackageNotFoundError):
        return False


def other(name: str) -> str:
    """The real program of a name, behind this one on the path; empty if there is none."""
    own = os.path.dirname(os.path.abspath(sys.argv[0]))
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, name)
        if os.path.realpath(folder) != os.path.realpath(own) and os.access(path, os.X_OK):
            return path
    return ""


def missing(what: list[str]) -> int:
    """0 if nothing is; else says it, and writes it down if the test script asked."""
    if not what:
        return 0
    sys.stderr.write(
        f"harnessgym: {'; '.join(what)}: not in the image, and nothing can be fetched while grading.\n"
    )
    record = os.environ.get("HARNESSGYM_MISSING", "")
    if record and asked_by_script():
        with open(record, "a", encoding="utf-8") as file:
            file.writelines(f"{each}\n" for each in what)
    return 100


def asked_by_script() -> bool:
    """Whether the parent is a shell that runs one of the task's test scripts."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
    except OSError:
        return True
    return os.path.basename(words[0]) in _SHELLS and any(word.startswith("/tests/") for word in words[1:])


def become(program: str, argv: list[str]) -> int:
    """Gives this process over to another program; returns only if there is none."""
    try:
        os.execvp(program, argv)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{program}: {error.strerror}\n")
    return 127


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    _leave(main(os.path.basename(sys.argv[0]), sys.argv[1:]))
