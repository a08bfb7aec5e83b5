import errno
from pathlib import Path

from harnessgym.disk import full_disk, shortage


def test_a_full_disk_is_recognised_wherever_it_hides():
    try:
        try:
            with open("/dev/full", "w") as file:
                file.write("x")
        except OSError as error:
            raise RuntimeError("the writer failed") from error
    except RuntimeError as error:
        assert "full" in full_disk(error)
    named = OSError(errno.ENOSPC, "No space left on device", "/runs/x")
    assert "The disk that holds /runs/x is full" in full_disk(named)
    assert full_disk(OSError(errno.EACCES, "Permission denied")) is None
    assert full_disk(ValueError("x")) is None


def test_a_disk_with_space_has_no_shortage():
    assert shortage(Path("/tmp")) is None
