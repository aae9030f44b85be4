"""Gives a new file or directory the owner, the group and the permissions of the one that it
replaces.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def copy_owner(old: os.stat_result, new: Path | int) -> None:
    """Give `new`, a path or a descriptor, the owner and the group of `old`. Raises OSError."""
    made = os.stat(new)  # noqa: PTH116  # also a descriptor
    if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
        os.chown(new, old.st_uid, old.st_gid)


def copy_access(old: os.stat_result, new: Path | int) -> None:
    """Give `new`, a path or a descriptor, the owner, the group and the permissions of `old`.

    Only root can give a file to another user. If the owner cannot be changed, the permissions are
    not changed either: with them, the present owner could lose access to the file.
    """
    with suppress(OSError):  # not permitted, or a file system without owners
        copy_owner(old, new)
    if os.stat(new).st_uid == old.st_uid:  # noqa: PTH116  # also a descriptor
        os.chmod(new, stat.S_IMODE(old.st_mode))  # noqa: PTH101
