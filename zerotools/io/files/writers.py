"""A check whether a process has a file open for writing.

The kernel gives a read lease (fcntl(2), F_SETLEASE) only for a file that no process has open for
writing. It gives leases to the owner of a file, on local file systems.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path


def is_open_for_writing(path: Path) -> bool:
    """Return whether a process has the regular file at `path` open for writing. Return False too if
    the system cannot tell.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        # Who opens the file while we hold the lease makes the kernel send us a signal: SIGIO, which
        # would end this process, unless another is chosen.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    finally:
        os.close(descriptor)
