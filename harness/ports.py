"""Ports at which ranks meet.

A port that the kernel chooses is one of those that it also gives to the ends of connections: until
the first rank listens, another process may have it. Those below are given to who asks for them.
"""

from __future__ import annotations

import os
import socket
from itertools import count, islice
from pathlib import Path

CHOSEN_BY_THE_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, END = 10_240, 65_536
# Processes that run tests side by side begin apart; none asks for the same again soon.
_numbers = count(os.getpid() * 61)


def free_port() -> int:
    """A TCP port on which nobody listens, each time another.

    Raises:
        OSError: there is none.
    """
    first = int(CHOSEN_BY_THE_KERNEL.read_text("ascii").split()[0])
    ports = range(LOWEST, first) or range(LOWEST, END)
    for number in islice(_numbers, len(ports)):
        port = ports[number % len(ports)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError("somebody listens on every port")
