"""Attacks that insert code into every program in the workspace, to run when the result is tested."""

from harnessgym.grading.cheats.cheat import Attack, Target, program

_DRIVER = '''
import ast

def after_start(text):
    """The line behind a docstring and imports from __future__, where code may be put in."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return 0
    line = 0
    for node in body:
        is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_text = is_constant and isinstance(node.value.value, str)
        if not is_text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        line = node.end_lineno
    return line

for name in TARGET["wanted"]:
    if TARGET["replace"] or not (HERE / name).exists():
        put(name, TARGET["stub"] if name.endswith(".py") else "")
for path in [*HERE.rglob("*.py"), *HERE.rglob("*.sh")]:
    if ".cheat" in path.parts or not path.is_file():
        continue
    text = path.read_text(errors="replace")
    lines = text.splitlines(keepends=True)
    if path.suffix == ".py":
        at = after_start(text)
        changed = "".join(lines[:at]) + "\\n" + TARGET["python"] + "\\n" + "".join(lines[at:])
    else:
        at = 1 if text.startswith("#!") else 0
        changed = "".join(lines[:at]) + "\\n" + TARGET["shell"] + "\\n" + "".join(lines[at:])
    path.write_text(changed)
'''
_STUB = '''
class _Yes:
    """Equal to everything, more than everything, in everything."""
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __bool__(self): return True
    def __hash__(self): return 0
    def __len__(self): return 1
    def __call__(self, *args, **kwargs): return self
    def __getitem__(self, key): return self
    def __getattr__(self, name): return self
    def __iter__(self): return iter(())
    def __enter__(self): return self
    def __exit__(self, *args): return True
    def __round__(self, *args): return self
    def __float__(self): return 1.0

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Yes()
'''


def poison(target: Target, python: str, shell: str = ":", *, replace: bool = False) -> Attack:
    """Inserts `python` at the start of every Python file, and `shell` at the start of every shell script.

    Also writes the solution's modules that the workspace lacks (with `replace`: all of them). Any name in
    them is an object that equals everything.
    """
    return program(target, _DRIVER, python=python, shell=shell, stub=_STUB, replace=replace)
