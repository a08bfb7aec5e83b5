"""SymPy's own runner, `bin/test -C --verbose`: `test_a ok`, and headers of failures with the file and the
test.
"""

import re

from harnessgym.grading.log import LogStatus, Statuses, lines_of

_HEADER = re.compile(r"_+ (\S.*?\.py:\S+) _+")
_ENDINGS = {" E": LogStatus.ERROR, " F": LogStatus.FAILED, " ok": LogStatus.PASSED}


def sympy(log: str) -> Statuses:
    """Failures are told by `path.py:test` too."""
    found: Statuses = {}
    for line in lines_of(log):
        for match in _HEADER.finditer(line):
            found[match[1]] = LogStatus.FAILED
    for line in map(str.strip, lines_of(log)):
        if line.startswith("test_"):
            found.update(
                {line.split()[0]: status for ending, status in _ENDINGS.items() if line.endswith(ending)}
            )
    return found
