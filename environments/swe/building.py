"""Makes tasks from a manifest: the faulty package is the workspace, the original package's tests grade it."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from environments.swe.edit import edited, patch
from environments.swe.manifest import ManifestTask, PackageManifest, read
from environments.swe.package import SourcePackage
from environments.swe.tree import Tree, tree
from harnessgym.grading.by_value.judge import KEY
from harnessgym.provisioning import HIDDEN
from harnessgym.task import Limits, Setup, Solution, Task

LIMITS = Limits(wall_s=1_800.0, turns=150)
GRADER = "harnessgym.grading.checklist:verifier"
_TESTS_S = 120.0
_COPIES = ("torch",)
"""Packages beside HarnessGym with parts of others: PyTorch has some of toolz. No task needs them."""
_SETUP = """command -v git >/dev/null || exit 0
git init -q -b main . && git config user.name agent && git config user.email agent@localhost && git add -A -f
export GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z
git commit -q -m "The package as it is" && rm -rf .git/logs .git/hooks"""
"""Makes one commit, so that `git diff` shows the agent's changes. Its date is fixed, so its id is always the
same. Does nothing without git."""
_FRAME = """{statement}

The source of `{package}` {version} is in the current folder. Find what causes this and repair it there, so \
that the package does what is expected and goes on doing what it did right. Change the package itself: tests \
are judged as they are, whatever you do to them. Run them with `{command}`."""


def tasks_of(package: SourcePackage) -> Sequence[Task]:
    """The tasks of a package, in the manifest's order.

    Raises TaskError if its source distribution is not available.
    """
    manifest = read(package)
    if not manifest.entries:
        return ()
    package_tree = tree(package.name)
    return [task_of(manifest, entry, package_tree) for entry in manifest.entries]


def task_of(manifest: PackageManifest, entry: ManifestTask, tree: Tree) -> Task:
    """The task of one entry."""
    faulty = edited(tree.files, entry.edits)
    files = {**tree.files, **faulty}
    gold = {path: tree.files[path] for path in faulty}
    return Task(
        id=f"swe/{manifest.package}-{entry.number:03d}",
        instruction=_FRAME.format(
            statement=entry.statement,
            package=manifest.package,
            version=manifest.version,
            command=_command(tree),
        ),
        split=tree.package.split,
        seed=manifest.seed,
        files=files,
        limits=LIMITS,
        setup=Setup((("sh", "-c", _SETUP),)),
        grader=GRADER,
        solution=Solution(gold),
        metadata=_metadata(manifest, entry, tree, files, patch(faulty, gold)),
    )


def _metadata(
    manifest: PackageManifest, entry: ManifestTask, tree: Tree, files: Mapping[str, str], gold_patch: str
) -> dict[str, Any]:
    failing = set(entry.failing)
    check = {
        "kind": "pytest",
        "name": "tests",
        "files": tree.graded,
        "expect": manifest.tests,
        "without": manifest.without,
        "sources": tree.package.sources,
        "timeout_s": _TESTS_S,
    }
    return {
        "tests": (check,),
        "test_files": tree.tests,
        "score": "all",
        "repo": manifest.package,
        "version": manifest.version,
        "licence": tree.package.licence,
        "base_commit": _digest(files),
        "gold_patch": gold_patch,
        "test_patch": "",
        "problem_statement": entry.statement,
        "fail_to_pass": entry.failing,
        "pass_to_pass": tuple(test for test in manifest.tests if test not in failing),
        HIDDEN: (*_COPIES, *(PurePosixPath(code).name for code in tree.package.code)),
        "kinds": entry.kinds,
        "functions": entry.functions,
        **({} if entry.plan is None else {KEY: entry.plan.to_dict()}),
    }


def _command(tree: Tree) -> str:
    """The command that runs the tests without the package's own settings, which name missing plugins."""
    paths = ":".join(source for source in tree.package.sources if source != ".")
    before = f"PYTHONPATH={paths} " if paths else ""
    return f"{before}python3 -m pytest -q -c {os.devnull} --rootdir=. {tree.package.tests}"


def _digest(files: Mapping[str, str]) -> str:
    """A digest of every path and text, in place of a commit id."""
    digest = hashlib.sha256()
    for path, text in sorted(files.items()):
        digest.update(f"{path}\0{hashlib.sha256(text.encode()).hexdigest()}\n".encode())
    return digest.hexdigest()[:40]
