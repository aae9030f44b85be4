"""Trouble of the machine, which is not the job's fault: it passes, and the job waits for that."""

from __future__ import annotations

import errno

NOT_READY = "not_ready"
"""How an attempt ends whose ranks could not be started because of the machine."""

_OF_MACHINE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS, errno.ENOLCK),
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL),
        *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO, errno.EMLINK),
        *(errno.ENOTCONN, errno.EREMOTEIO),  # of a mount whose server has ended
    }
)
_OF_ADMINISTRATOR = frozenset({errno.EACCES, errno.EPERM})


def is_of_machine(error: OSError, *, own_files: bool = False) -> bool:
    """Whether the same may succeed later, by nothing that the job does: room on a disk, inodes,
    descriptors, processes, memory, a disk or a server that answers again.

    `own_files`: it concerns files of the daemon alone, to which no job can lose access.
    """
    return error.errno in _OF_MACHINE or (own_files and error.errno in _OF_ADMINISTRATOR)


def hangs(what: str) -> str:
    """The reason of an attempt that waits for `what`; a listing adds for how long."""
    return (
        f"{what} does not answer (look at its file system, at mount and dmesg), and the job waits"
    )
