"""A process, of another user where the test is root, that holds flocks until it is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.started import Started

NOBODY = 65534 if os.geteuid() == 0 else os.geteuid()
"""The uid of whoever else has a lock."""
_HOLD = """
import fcntl, os, sys
os.setresuid(*[int(sys.argv[1])] * 3)
for path in sys.argv[2:]:
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def lock_directory(parent: Path) -> Path:
    """A directory of locks, as tmpfiles makes it."""
    made = parent / "gpus"
    made.mkdir()
    made.chmod(0o1777)
    return made


@contextmanager
def kept_locked(*paths: Path) -> Iterator[int]:
    """Files (made where they are missing) or directories, locked by a process of NOBODY; its
    pid."""
    for path in paths:
        if not path.exists():
            path.touch(0o644)
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    process = Started(
        # By descriptors: the directories above belong to the user of the test alone.
        [sys.executable, "-I", "-S", "-c", _HOLD, str(NOBODY)]
        + [f"/proc/self/fd/{fd}" for fd in fds],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=fds,
    )
    for fd in fds:
        os.close(fd)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    try:
        yield process.pid
    finally:
        process.end()
