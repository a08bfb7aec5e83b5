import errno
from pathlib import Path

import pytest

from harnessgym.disk import full_disk, shortage


def test_a_full_disk_is_recognised_wherever_it_hides():
    def write():
        try:
            with open("/dev/full", "w") as file:
                file.write("x")
        except OSError as error:
            raise RuntimeError("the writer failed") from error

    with pytest.raises(RuntimeError) as caught:
        write()
    assert "full" in full_disk(caught.value)
    named = OSError(errno.ENOSPC, "No space left on device", "/runs/x")
    assert "The disk that holds /runs/x is full" in full_disk(named)
    assert full_disk(OSError(errno.EACCES, "Permission denied")) is None
    assert full_disk(ValueError("x")) is None


def test_a_disk_with_space_has_no_shortage():
    assert shortage(Path("/tmp")) is None
