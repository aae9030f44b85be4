"""The check that the daemon can watch a process that a user started by hand.

The check runs in a process of that user: /proc lets a process read the working directory and the
environment only of processes of its own user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.script import AdoptedProcess
from zerotoolsd.supervisor.procfs import (
    Process,
    all_processes,
    await_program,
    boot_id,
    descendants,
    read_process,
    read_stat,
)
from zerotoolsd.supervisor.signal_process import is_of_uid

_KERNEL_THREAD = 0x00200000
"""The flag PF_KTHREAD (include/linux/sched.h) in field 9 of /proc/PID/stat: a kernel thread."""
_OURS = (b"ZEROTOOLS_TOKEN=", b"ZEROTOOLS_RUN_DIR=")
_SUPERVISOR = b"/zerotoolsd/supervisor/entry.py"
_LONGEST = 4096
_MOST_WORDS = 200


@dataclass(frozen=True, kw_only=True)
class Adoptable:
    """A process of a user that a job can watch.

    `adopted` identifies the process, `command` is its command with arguments, `directory` is its
    working directory, and `below` are the pids of its descendants.
    """

    adopted: str
    command: tuple[str, ...]
    directory: str
    below: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all fields, keyed by name, as JSON values."""
        return asdict(self)


def inspect_process(pid: int, daemon_pid: int) -> dict[str, Any]:
    """Return the fields of an `Adoptable` that describes process `pid`, as JSON values.

    Raises BadRequest if the daemon cannot watch this process.
    """
    table = all_processes()
    process = _adoptable_process(pid, table)
    await_program(process, milliseconds=200)
    _refuse_ours(process, table, daemon_pid)
    identity = AdoptedProcess(pid, process.start_ticks, boot_id())
    words = _read(Path(f"/proc/{pid}/cmdline")).rstrip(b"\0").split(b"\0")[:_MOST_WORDS]
    command = [_shown(word[:_LONGEST]) for word in words if word]
    try:
        directory = _shown(os.readlink(f"/proc/{pid}/cwd".encode()))  # noqa: PTH115  # "… (deleted)"
    except OSError:
        directory = "/"
    return Adoptable(
        adopted=str(identity),
        command=tuple(command) or (process.name,),
        directory=directory,
        below=tuple(sorted(each.pid for each in descendants(pid, table))),
    ).to_json()


def _shown(word: bytes) -> str:
    """Decode an argument of a command to show it to users. The result is never executed."""
    return word.decode("utf-8", "replace").replace("\n", " ")


def why_not_adoptable(process: AdoptedProcess) -> Iterator[str]:
    """Yield a reason if the process that a job watches has ended, or belongs to another user."""
    gone = f"script.adopted: process {process.pid} is gone"
    if process.boot_id != boot_id():
        yield f"{gone}: the machine was restarted"
        return
    now = read_process(process.pid)
    if now is None or now.is_over or now.start_ticks != process.start_ticks:
        yield f"{gone}: it has ended, and cannot be watched again"
    elif not is_of_uid(process.pid, os.getuid()):
        yield f"script.adopted: process {process.pid} belongs to another user"


def _adoptable_process(pid: int, table: dict[int, Process]) -> Process:
    process = table.get(pid) or read_process(pid)
    if process is None:
        raise BadRequest(f"process {pid} does not exist on this machine, or has ended")
    if (thread_of := _status(pid, b"Tgid:")) not in (None, pid):
        raise BadRequest(f"{pid} is a thread of process {thread_of}; name that process")
    if int(_fields(pid)[6]) & _KERNEL_THREAD:
        raise BadRequest(f"process {pid} ({process.name}) is a thread of the kernel, not a program")
    if process.is_over:
        raise BadRequest(f"process {pid} ({process.name}) has ended already")
    if not is_of_uid(pid, os.getuid()):
        owner = _status(pid, b"Uid:")
        raise BadRequest(
            f"process {pid} ({process.name}) belongs to uid {owner}, and you are uid "
            f"{os.getuid()}: only that user can adopt it"
        )
    return process


def _refuse_ours(process: Process, table: dict[int, Process], daemon_pid: int) -> None:
    """Raise BadRequest if the process is part of zerotools, or an ancestor of the daemon."""
    if daemon_pid in (process.pid, *(each.pid for each in descendants(process.pid, table))):
        what = "is the daemon itself" if daemon_pid == process.pid else "has started the daemon"
        raise BadRequest(
            f"process {process.pid} ({process.name}) {what}; name the process that trains"
        )
    each: Process | None = process
    seen: set[int] = set()
    while each is not None and each.pid not in seen:
        seen.add(each.pid)
        if _is_ours(each.pid):
            raise BadRequest(
                f"process {process.pid} ({process.name}) belongs to a job of zerotools already; "
                "zerotools monitor shows which"
            )
        each = table.get(each.parent)


def _is_ours(pid: int) -> bool:
    """Return whether process `pid` belongs to a job of zerotools, as far as this user may read the
    environment and command of processes.
    """
    variables = _read(Path(f"/proc/{pid}/environ")).split(b"\0")
    if any(variable.startswith(_OURS) for variable in variables):
        return True
    return any(
        word.endswith(_SUPERVISOR) for word in _read(Path(f"/proc/{pid}/cmdline")).split(b"\0")
    )


def _fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name. Raises BadRequest if the pid is gone."""
    try:
        text = read_stat(pid)
    except OSError:
        raise BadRequest(f"process {pid} has just ended") from None
    return text[text.rindex(b")") + 2 :].split()


def _status(pid: int, name: bytes) -> int | None:
    lines = _read(Path(f"/proc/{pid}/status")).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
