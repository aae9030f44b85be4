"""Runs a process under strace, which kills it at its N-th call of a kind, or makes such calls
fail.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness.patience import Deadline

CALLS = (
    *("pwrite64", "fdatasync", "fsync", "rename", "mkdir", "unlink"),
    *("unlinkat", "rmdir", "ftruncate", "fallocate"),
)
"""System calls that make data durable, give a file a name, or remove a file."""
OPENING = ("openat", "socket", "pipe2", "pidfd_open")
"""System calls that open a file descriptor. They fail with EMFILE.

No process is killed at these calls, because a kill at one of `CALLS` has the same effect.
"""
OPENING_ERRORS = ("EMFILE",)
ERRORS = ("ENOSPC", "EIO", "EMFILE")
FEW = 4
"""If errors are injected, this number of consecutive calls of a kind fail."""
_CALL = re.compile(rb"^(?:\d+ +)?([a-z0-9_]+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Injection:
    """A fault at the call number `number` (from 1) of the system call `call`.

    The process is killed before this call. With `error`, this call and the next calls fail with
    `error` instead.
    """

    call: str
    number: int
    error: str | None = None

    def __str__(self) -> str:
        return f"{self.error or 'kill'} at {self.call} {self.number}"

    @property
    def options(self) -> list[str]:
        """The options for strace."""
        what = f"signal=KILL:when={self.number}"
        if self.error is not None:
            what = f"error={self.error}:when={self.number}..{self.number + FEW - 1}"
        return ["-e", f"trace={self.call}", "-e", f"inject={self.call}:{what}"]


@dataclass(frozen=True)
class CrashPoint:
    """A fault without strace: the daemon kills itself when it reaches a point of its code.

    `name` is the name of the point in `zerotoolsd.attempts.crash_points`.
    """

    name: str

    def __str__(self) -> str:
        return f"kill at {self.name}"


def is_installed() -> bool:
    """Return whether strace is installed."""
    return shutil.which("strace") is not None


def attach(pid: int, out: Path, injection: Injection | None) -> subprocess.Popen[bytes]:
    """Attach strace to the stopped process `pid`, without its children, and return strace's
    process.

    Without an injection, strace only writes the calls of the process to the file `out`.
    """
    options = injection.options if injection else ["-e", f"trace={','.join((*CALLS, *OPENING))}"]
    said = out.with_suffix(".said").open("wb")
    with said:
        tracer = subprocess.Popen(
            ["strace", "-q", "-p", str(pid), "-o", str(out), *options],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    deadline = Deadline(20)
    while _tracer_of(pid) == 0:
        if tracer.poll() is not None or deadline.has_passed():
            raise OSError(f"pid {pid} cannot be traced: {out.with_suffix('.said').read_text()}")
        time.sleep(0.002)
    return tracer


def _tracer_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("TracerPid:")[2].split()[0])


def is_stopped(pid: int) -> bool:
    """Return whether the process `pid` is stopped (SIGSTOP)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def counted(out: Path) -> Counter[str]:
    """Return how often each call occurs in the file `out`, which strace has written."""
    found = _CALL.findall(out.read_bytes()) if out.exists() else []
    return Counter(name.decode() for name in found if name.decode() in (*CALLS, *OPENING))


def injected(out: Path) -> bool:
    """Return whether strace has killed the process or made a call fail, according to its file
    `out`.
    """
    data = out.read_bytes() if out.exists() else b""
    return b"(INJECTED)" in data or b"killed by SIGKILL" in data
