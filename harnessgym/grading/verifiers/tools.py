"""Reads from a test script's text what it fetches, and installs that in the image while there is network.

Test scripts of published tasks begin with `apt-get install`, `curl .../uv/install.sh | sh`, `uvx -w
pytest==8.4.1 pytest` or `pip install pytest`. Grading has no network. So a layer of the grading image
contains these packages, and programs named `apt-get`, `curl`, `uv`, `uvx` and `pip` that come first on the
script's `PATH`. They succeed for packages that are there and record the others (`runners/offline.py`).
Whatever version of Python `uvx -p` names, the image's own is used.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from harnessgym.grading.runners.offline import _INSTALLER as _UV_INSTALLER
from harnessgym.grading.runners.offline import _TAKES_VALUE

FOLDER = "/opt/harnessgym/verifier"
BIN = f"{FOLDER}/bin"
"""First folder on the `PATH` of test scripts."""
_SHIMS = ("apt", "apt-get", "curl", "wget", "uv", "uvx", "pip", "pip3")
_SHIMMED = frozenset({"curl", "wget", "ca-certificates"})
"""Debian packages that most scripts install only to fetch uv."""
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?\s*((===?|~=|!=|<=?|>=?)[A-Za-z0-9.*+!_,<>=~-]+)?"
)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+(=[A-Za-z0-9.+~:-]+)?")
_WITH = frozenset({"-w", "--with"})
_INSTALL = """\
set -e
folder=$1 program=$2 shims=$3 python=$4; shift 4
make() { rm -rf "$folder/venv"; python3 -m venv --system-site-packages "$folder/venv" >/dev/null 2>&1; }
if ! make; then
    apt-get update
    apt-get install -y --no-install-recommends python3 python3-venv
    rm -rf /var/lib/apt/lists/*
    make
fi
"$folder/venv/bin/python" -m pip install --ignore-installed --no-cache-dir "$@"
mkdir -p "$folder/bin"
printf '#!%s/venv/bin/python -I\\n%s' "$folder" "$program" > "$folder/offline"
chmod 755 "$folder/offline"
for name in $shims; do ln -sf ../offline "$folder/bin/$name"; done
for path in "$folder"/venv/bin/*; do
    name=${path##*/}
    case $name in
        python*) [ -z "$python" ] || ln -sf "$path" "$folder/bin/$name";;
        pip*|[Aa]ctivate*) ;;
        *) ln -sf "$path" "$folder/bin/$name";;
    esac
done
chmod -R a+rX "$folder"
"""
_APT = """\
set -e
apt-get update
apt-get install -y --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/*
"""


@dataclass(frozen=True, slots=True)
class Tools:
    """The packages that test scripts fetch."""

    fetches: bool = False
    """Whether they fetch anything."""
    pip: tuple[str, ...] = ()
    """Requirements, each package once."""
    apt: tuple[str, ...] = ()
    """Debian packages."""
    python: bool = False
    """Whether plain `python3` must find the packages too."""


def tools_of(folders: Sequence[Mapping[str, str]]) -> Tools:
    """What the shell scripts in folders of tests fetch, where a line names it literally."""
    reader = _Reader()
    for folder in folders:
        reader.tests = folder
        for name in sorted(name for name in folder if name.endswith(".sh")):
            for call in _calls(folder[name]):
                reader.read(call)
    return reader.tools()


def install(tools: Tools) -> tuple[tuple[str, ...], ...]:
    """The commands that install the tools into an image, for `harnessgym.task.GradingImage.install`.

    Empty if the scripts fetch nothing.
    """
    if not tools.fetches:
        return ()
    packages = [("sh", "-c", _APT, "sh", *tools.apt)] if tools.apt else []
    shims = " ".join(_SHIMS)
    python = "yes" if tools.python else ""
    return (
        *packages,
        ("sh", "-c", _INSTALL, "sh", FOLDER, _program(), shims, python, *(tools.pip or ("pytest",))),
    )


class _Reader:
    """Collects what commands fetch."""

    def __init__(self) -> None:
        self.tests: Mapping[str, str] = {}
        """The files that scripts may name."""
        self._pip: dict[str, str] = {}
        self._apt: dict[str, None] = {}
        self._fetches = self._python = self._fetches_more_than_uv = False

    def tools(self) -> Tools:
        apt = [name for name in self._apt if self._fetches_more_than_uv or name not in _SHIMMED]
        pytest = {"pytest": "pytest"} if self._fetches else {}
        return Tools(self._fetches, tuple((pytest | self._pip).values()), tuple(apt), self._python)

    def read(self, call: Sequence[str]) -> None:
        program = call[0].rsplit("/", 1)[-1]
        rest = list(call[1:])
        if re.fullmatch(r"python[0-9.]*", program) and rest[:2] in (["-m", "pip"], ["-m", "uv"]):
            program = rest[1]
            rest = rest[2:]
        if program in _SHIMS:
            self._fetches = True
        if program in ("apt", "apt-get"):
            self._read_apt(rest)
        elif program in ("curl", "wget"):
            self._fetches_more_than_uv |= not any(_UV_INSTALLER.search(word) for word in rest)
        elif program in ("pip", "pip3"):
            self._read_pip(rest)
        elif program == "uvx":
            self._read_run(rest, tool=True)
        elif program == "uv":
            self._read_uv(rest)

    def _read_apt(self, words: list[str]) -> None:
        names = [word for word in words if not word.startswith("-")]
        if names[:1] == ["install"]:
            self._apt |= dict.fromkeys(name for name in names[1:] if _PACKAGE.fullmatch(name))

    def _read_pip(self, words: list[str]) -> None:
        if "install" in words:
            self._python = True
            self._add(words[words.index("install") + 1 :])

    def _read_uv(self, words: list[str]) -> None:
        verbs = [word for word in words if not word.startswith("-")]
        if verbs[:2] == ["tool", "run"]:
            self._read_run(words[words.index("run") + 1 :], tool=True)
        elif verbs[:2] == ["tool", "install"] or verbs[:2] == ["pip", "install"]:
            self._python |= verbs[0] == "pip"
            self._add(words[words.index("install") + 1 :])
        elif verbs[:1] == ["add"]:
            self._add(words[words.index("add") + 1 :])
        elif verbs[:1] == ["run"]:
            self._read_run(words[words.index("run") + 1 :], tool=False)

    def _read_run(self, words: list[str], *, tool: bool) -> None:
        """Reads options up to the command. A tool's name is a package too, unless `--from` names another."""
        source = ""
        wanted = list[str]()
        while words and words[0].startswith("-"):
            option, equals, value = words.pop(0).partition("=")
            takes = option in _WITH | _TAKES_VALUE | {"--from", "--with-requirements"}
            if takes and not equals:
                value = words.pop(0) if words else ""
            if option in _WITH:
                wanted += value.split(",")
            elif option == "--from":
                source = value
            elif option == "--with-requirements":
                wanted += self._listed(value)
        if tool and words:
            wanted.append(source or words[0].replace("@latest", "").replace("@", "=="))
        self._add(wanted)

    def _add(self, words: list[str]) -> None:
        skip = listed = False
        for word in words:
            if listed:
                self._add(self._listed(word))
            elif not skip and not word.startswith("-") and _REQUIREMENT.fullmatch(word):
                name = re.split(r"[\[<>=!~ ]", word, maxsplit=1)[0].lower().replace("_", "-")
                # The first pinned version wins over later ones, and over an unpinned name before it.
                if "=" not in self._pip.get(name, ""):
                    self._pip[name] = word
            skip = word in _TAKES_VALUE
            listed = word in ("-r", "--requirement")

    def _listed(self, path: str) -> list[str]:
        """The requirements in a file that is among the tests."""
        name = re.sub(r"^(/tests|\$\{?TEST_DIR\}?|\$\{?TESTS\}?)/", "", path)
        lines = self.tests.get(name, "").splitlines()
        return [line.split("#")[0].split(";")[0].strip().replace(" ", "") for line in lines]


def _calls(script: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, as words. Skips lines that cannot be parsed."""
    # Line by line: one unbalanced quote, as in a here-document, must not hide the rest of the script.
    for line in re.sub(r"\\\n", " ", script).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue
        call: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("();|&"):
                if call := _bare(call):
                    yield call
                call = []
            else:
                call.append(word)


def _bare(call: list[str]) -> list[str]:
    """Removes keywords, assignments and wrappers before a program's name."""
    while call and (
        call[0] in ("sudo", "then", "else", "do", "if", "!", "time", "env", "exec")
        or re.match(r"\w+=", call[0])
    ):
        call = call[1:]
    return call


def _program() -> str:
    return (files("harnessgym.grading.runners") / "offline.py").read_text()
