"""Exchanges two names in one step, which no kill can interrupt (renameat2, RENAME_EXCHANGE). Also
finds out whether a directory can be renamed at all.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})
"""The error numbers of file systems that cannot exchange names: NFS, some of FUSE."""


def exchange_names(first: Path, second: Path) -> None:
    """Exchange two names, which must both exist on one file system: each then has the contents of
    the other.

    Raises:
        OSError: the exchange failed, and nothing has changed. An error number in `UNSUPPORTED`
            means that the file system cannot exchange names.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library without it
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(second)) from None
    done = rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if done:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(second))


def why_fixed(
    path: Path, occupied: Path, rename: Callable[[Path, Path], object] = os.rename
) -> str | None:
    """Return the reason why the directory `path` cannot be renamed, or None if renaming is
    possible.

    The test tries to rename the directory to `occupied`, a directory that is not empty, so nothing
    changes. Two kinds of directories cannot be renamed: a directory in a lower layer of overlayfs,
    and a directory that this user may not remove. `rename` is os.rename, except in tests.

    Raises:
        NotImplementedError: the file system would replace a directory that is not empty.
    """
    try:
        rename(path, occupied)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return None
        if error.errno == errno.EXDEV:
            return (
                "it is in a lower layer of an overlay file system (the image of a container), "
                "which cannot rename directories"
            )
        return error.strerror or str(error)
    raise NotImplementedError(f"{occupied} was replaced")
