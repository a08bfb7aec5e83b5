"""`python -m environments.check`: runs gymnasium's own checker on every id; a warning is an error.

    python -m environments.check                                    every id
    python -m environments.check harnessgym/SWE-v0 --sandbox docker

Exit status 0 if all pass, else 1.
"""

import argparse
import sys
import time
import warnings

import gymnasium
from gymnasium.utils.env_checker import check_env

from environments import IDS
from harnessgym.errors import HarnessGymError


def check(name: str, sandbox: str) -> str:
    """Why an id does not pass; empty if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            env = gymnasium.make(f"environments:{name}", sandbox=sandbox)
            try:
                check_env(env.unwrapped)
            finally:
                env.close()
    except (
        AssertionError,
        Warning,
        gymnasium.error.Error,
        HarnessGymError,
        OSError,
        TypeError,
        ValueError,
    ) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    """Checks the named ids and prints a line for each."""
    parser = argparse.ArgumentParser(description="Runs gymnasium's check_env on the shipped environments.")
    parser.add_argument("ids", nargs="*", default=sorted(IDS), metavar="ID", help="all, if none is named")
    parser.add_argument("--sandbox", default="bubblewrap", help="process, bubblewrap or docker")
    options = parser.parse_args()
    problems = 0
    for name in options.ids:
        began = time.monotonic()
        problem = check(name, options.sandbox)
        problems += bool(problem)
        print(  # noqa: T201
            f"{name} ({options.sandbox}): {problem or 'passes check_env'} [{time.monotonic() - began:.1f} s]"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
