"""The processes with an open device file of a GPU, from /proc/PID/fd: this user's, or all as root.

The driver keeps a process's use of a GPU until the last copy of its descriptor is closed. A forked
worker holds such a copy, and is in none of NVML's lists: `fuser -v /dev/nvidia*` shows it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from zerotoolsd.supervisor.procfs import Process

PREFIX = "/dev/nvidia"
MOST_FILES = 4096
"""Most open files examined in one process."""
SECONDS = 1.0
"""Limit in seconds for all processes; the remaining ones are skipped."""


def holders(
    processes: Iterable[Process], prefix: str = PREFIX, proc: Path = Path("/proc")
) -> dict[int, str]:
    """Return by pid the first open device file, by name, of each of these processes.

    Files that belong to all GPUs (`nvidiactl`, `nvidia-uvm`) do not count.
    """
    found, deadline = dict[int, str](), time.monotonic() + SECONDS
    for process in processes:
        names = sorted(_open_devices(proc / str(process.pid) / "fd", prefix))
        if names:
            found[process.pid] = names[0]
        if time.monotonic() > deadline:
            break
    return found


def _open_devices(directory: Path, prefix: str) -> set[str]:
    found = set[str]()
    try:
        with os.scandir(directory) as entries:
            for entry in islice(entries, MOST_FILES):
                with suppress(OSError):  # it was closed meanwhile
                    target = os.readlink(entry.path)  # noqa: PTH115  # "socket:[7]" is no path
                    if target.startswith(prefix) and target[len(prefix) :].isdecimal():
                        found.add(target)
    except OSError:  # the process has ended, or belongs to another user
        return found
    return found
