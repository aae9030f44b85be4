"""Recognises errors that are caused by the machine and pass by themselves. After such an error the
job waits, and does not count as failed.
"""

from __future__ import annotations

import errno

NOT_READY = "not_ready"
"""The outcome of an attempt that the machine could not start now."""

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
    """Return whether the operation that raised `error` may succeed later although the job is not
    changed.

    The cause may be a lack of disk space, inodes, file descriptors, processes or memory, or a disk
    or server that does not respond. `own_files` is True if only the daemon uses the files. In this
    case the machine is also the cause of a permission error.
    """
    return error.errno in _OF_MACHINE or (own_files and error.errno in _OF_ADMINISTRATOR)


def error_text(error: OSError) -> str:
    """Return the file and the reason of the error; only the reason if no file is known."""
    why = error.strerror or str(error)
    return why if error.filename is None else f"{error.filename}: {why}"


def hang_reason(what: str) -> str:
    """Return a sentence: the attempt waits because the file `what` does not respond."""
    return f"{what} does not answer (check its file system, mount and dmesg), and the job waits"
