"""Whom to ask to stop: the user's programs, and not the shells and launchers around them.

A shell dies of a SIGTERM and leaves its program running; torchrun answers one with a time limit of
its own and always fails. Both end by themselves once what they started has ended. So does what only
passes output on in a pipeline (`python train.py | tee log`), and a program that is saving may not
live through the end of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from zerotoolsd.supervisor.procfs import Process, open_process, processes

SHELLS = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "sh", "zsh"})
FILTERS = frozenset(
    {
        "awk",
        "cat",
        "coreutils",
        "gawk",
        "grep",
        "gzip",
        "head",
        "mawk",
        "sed",
        "tail",
        "tee",
        "zstd",
    }
)


def terminate(pids: Iterable[int], *, launcher: bool) -> list[int]:
    """SIGTERM the programs at or below the processes `pids`; the pids of those that it reached.

    `launcher`: these are launchers, whose children are the programs.
    """
    table = processes()
    roots = [table[pid] for pid in pids if pid in table]
    found = {p.pid: p for root in roots for p in _programs(root, table, launcher=launcher)}
    return [process.pid for process in found.values() if _terminate(process)]


def _programs(
    process: Process, table: Mapping[int, Process], *, launcher: bool
) -> Iterator[Process]:
    children = [p for p in table.values() if p.parent == process.pid and p.state not in "ZX"]
    if children and (launcher or _name(process.pid) in SHELLS):
        ranks = [child for child in children if _is_rank(child.pid)]
        others = [child for child in children if _name(child.pid) not in FILTERS]
        for child in (launcher and ranks) or others or children:
            yield from _programs(child, table, launcher=False)
    else:
        yield process


def _name(pid: int) -> str | None:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115  # "… (deleted)"
    except OSError:
        return None


def _is_rank(pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(b"RANK=") for variable in variables)


def _terminate(process: Process) -> bool:
    fd = open_process(process.pid, process.start_ticks)
    if fd is None:
        return False
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, signal.SIGTERM)
    os.close(fd)
    return True
