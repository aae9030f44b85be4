"""Returns free TCP ports at which ranks meet.

The kernel would choose a port from the range that it also uses for outgoing connections. So another
process could take the port before the first rank listens. The ports of this module are below that
range, where a port is only used on request.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

CHOSEN_BY_THE_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, END = 10_240, 65_536
_numbers: dict[int, Iterator[int]] = {}
"""The port numbers that this process tries, in order.

Processes that run tests in parallel, and forked processes, begin at different ports. None of them
returns the same port again soon.
"""


_claims: dict[int, int] = {}
"""The file descriptor with which a process claims its ports, keyed by the pid."""


def free_port() -> int:
    """Return a free TCP port. Each call returns a different port, and until this process ends, no
    other process of this user gets the port from this function.

    Raises:
        OSError: no port is free.
    """
    first = int(CHOSEN_BY_THE_KERNEL.read_text("ascii").split()[0])
    ports = range(LOWEST, first) or range(LOWEST, END)
    numbers = _numbers.setdefault(os.getpid(), count(os.getpid() * 61))
    for number in islice(numbers, len(ports)):
        port = ports[number % len(ports)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if _claim(port):
            return port
    raise OSError("every port is in use")


def _claim(port: int) -> bool:
    """Lock the byte number `port` of a file that all processes of this user share. Return whether
    no other process has locked it."""
    if os.getpid() not in _claims:
        path = Path(tempfile.gettempdir(), f"zerotools-ports-{os.getuid()}")
        _claims[os.getpid()] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, port, 1, 0)
    try:
        fcntl.fcntl(_claims[os.getpid()], fcntl.F_OFD_SETLK, lock)
    except BlockingIOError:
        return False
    return True
