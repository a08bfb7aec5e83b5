"""Landlock: takes a right over files below some folders from this process and its children, for good.

A file below `/proc` that belongs to another process is a way into its memory that no filter of system calls
can tell from an ordinary file. Landlock can.
"""

import os
import struct

from . import kernel

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_ASK_VERSION = 1
_BENEATH = 1
_WRITE_FILE = 1 << 1
_REFER = 1 << 13
_RIGHTS = _WRITE_FILE | _REFER
_FIRST_WITH_REFER = 2


def forbid_writing_below(kept: str) -> bool:
    """Denies opening any file for writing below `kept`, a folder of the root; others keep their modes.

    Returns False on a kernel without Landlock, or with its first version, which cannot leave renames alone.
    """
    if kernel.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION) < _FIRST_WITH_REFER:
        return False
    handled = struct.pack("=Q", _RIGHTS)
    ruleset = kernel.checked_syscall("landlock_create_ruleset", _CREATE_RULESET, handled, len(handled), 0)
    for entry in os.scandir("/"):
        if entry.path != kept and entry.is_dir(follow_symlinks=False):
            folder = os.open(entry.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            rule = struct.pack("=Qi", _RIGHTS, folder)
            kernel.checked_syscall("landlock_add_rule", _ADD_RULE, ruleset, _BENEATH, rule, 0)
            os.close(folder)
    kernel.checked_syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return True
