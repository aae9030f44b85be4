"""Recognises errors of the machine that pass. The job waits, and is not blamed."""

from __future__ import annotations

import errno

NOT_READY = "not_ready"
"""The outcome of an attempt if the machine could not start its ranks."""

_OF_MACHINE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.ENOLCK),
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL),
        *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO, errno.EMLINK),
        *(errno.ENOTCONN, errno.EREMOTEIO),  # of a mount after its server has ended
    }
)
_OF_ADMINISTRATOR = frozenset({errno.EACCES, errno.EPERM})


def is_transient(error: OSError, *, own_files: bool = False) -> bool:
    """Return whether the same operation may succeed later without any change of the job.

    The cause may be disk space, inodes, descriptors, processes, memory, or a disk or server that
    does not respond. `own_files`: the error is of files that only the daemon uses; no job can lose
    access to them.
    """
    return error.errno in _OF_MACHINE or (own_files and error.errno in _OF_ADMINISTRATOR)


def hangs(what: str) -> str:
    """Return the reason of an attempt that waits because `what` does not respond."""
    return f"{what} does not answer (check its file system, mount and dmesg), and the job waits"
