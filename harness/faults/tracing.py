"""One process under strace, which kills it at its N-th call of a kind, or lets such calls fail."""

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
"""What makes something durable, gives it its name or takes it away."""
OPENING = ("openat", "socket", "pipe2", "pidfd_open")
"""What takes a descriptor: it fails with EMFILE, and no kill there is another than at `CALLS`."""
OPENING_ERRORS = ("EMFILE",)
ERRORS = ("ENOSPC", "EIO", "EMFILE")
FEW = 4
"""So many calls of a kind, one after another, fail where errors are injected."""
_CALL = re.compile(rb"^(?:\d+ +)?([a-z0-9_]+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Injection:
    """What happens at the `number`-th call `call` (from 1): death, or the error `error`."""

    call: str
    number: int
    error: str | None = None

    def __str__(self) -> str:
        return f"{self.error or 'kill'} at {self.call} {self.number}"

    @property
    def options(self) -> list[str]:
        """As strace takes it."""
        what = f"signal=KILL:when={self.number}"
        if self.error is not None:
            what = f"error={self.error}:when={self.number}..{self.number + FEW - 1}"
        return ["-e", f"trace={self.call}", "-e", f"inject={self.call}:{what}"]


@dataclass(frozen=True)
class CrashPoint:
    """The daemon kills itself where it first comes to `zerotoolsd.crashpoints.name`: no strace."""

    name: str

    def __str__(self) -> str:
        return f"kill at {self.name}"


def is_installed() -> bool:
    """Whether there is a strace that may trace."""
    return shutil.which("strace") is not None


def attach(pid: int, out: Path, injection: Injection | None) -> subprocess.Popen[bytes]:
    """Trace the stopped process `pid` alone, none of its children, and let it go on.

    Without an injection its calls are only noted in `out`.
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
    """Whether a process has stopped itself, to be traced."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def counted(out: Path) -> Counter[str]:
    """How often each call stands in the trace `out`."""
    found = _CALL.findall(out.read_bytes()) if out.exists() else []
    return Counter(name.decode() for name in found if name.decode() in (*CALLS, *OPENING))


def injected(out: Path) -> bool:
    """Whether anything was done to a call in the trace `out`."""
    data = out.read_bytes() if out.exists() else b""
    return b"(INJECTED)" in data or b"killed by SIGKILL" in data
