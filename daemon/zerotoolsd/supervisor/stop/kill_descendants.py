"""Kills all descendants of this process, also in new sessions, and describes the processes that
survive SIGKILL.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup
from zerotoolsd.supervisor.gpu_locks import uid_text
from zerotoolsd.supervisor.procfs import Process, all_processes, boot_id, descendants, read_process
from zerotoolsd.supervisor.rank_log import log_line
from zerotoolsd.supervisor.signal_process import kill_process

NoteEnd = Callable[[int, int], None]
"""A function that is called with (pid, wait status) of an ended child process, before the
kernel forgets the process.
"""
_DUMPED = 0x80


def reap_children(note: NoteEnd = lambda pid, status: None) -> dict[int, int]:
    """Read the wait statuses of all child processes that have ended, so that the kernel can forget
    them. Return {pid: wait status}.

    `note` is called for each process before its status is read.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ended
        if found is None:
            return ended
        status = _wait_status(found)
        note(found.si_pid, status)
        os.waitpid(found.si_pid, 0)
        ended[found.si_pid] = status


def _wait_status(found: os.waitid_result) -> int:
    if found.si_code == os.CLD_EXITED:
        return found.si_status << 8
    return found.si_status | (_DUMPED if found.si_code == os.CLD_DUMPED else 0)


def alive_below(pid: int) -> list[Process]:
    """Return the descendants of the process `pid` that have not ended."""
    return [p for p in descendants(pid, all_processes()) if not p.is_over]


class KillResult:
    """The result of `kill_all`."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        """Wait status of each child process that has ended, by pid."""
        self.stuck: list[Process] = []
        """Processes that are still alive after SIGKILL."""
        self.refused: set[int] = set()
        """Pids of processes that this user may not kill."""

    def left_behind(self, ranks: Mapping[int, int]) -> list[dict[str, Any]]:
        """Return the records of the processes that survived SIGKILL. `ranks` maps the pid of
        each rank to the number of the rank.
        """
        return [
            left_behind(p, rank=ranks.get(p.pid), refused=p.pid in self.refused)
            for p in self.stuck[:MOST_NAMED]
        ]


def kill_all(
    deadline_seconds: float,
    spare: Collection[int] = (),
    note: NoteEnd = lambda pid, status: None,
    *,
    kill: Callable[[Process], object] = kill_process,
    group: AttemptGroup | None = None,
) -> KillResult:
    """Send SIGKILL to all processes of the control `group` and to all descendants of this process,
    except the pids in `spare`.

    The signals are sent again and again, because the processes may fork meanwhile, and also because
    the machine may lack file descriptors for a while. Processes that still live after
    `deadline_seconds` are in the result.
    """
    done = KillResult()
    deadline = time.monotonic() + deadline_seconds
    pause = 0.001
    while True:
        try:
            if group is not None:
                group.kill()
            alive = [process for process in _alive(group) if process.pid not in spare]
            done.refused = _kill_each(alive, kill)
        except OSError as error:
            log_line(f"cannot search for remaining processes: {error}")
            alive, deadline = [], time.monotonic() + deadline_seconds
            looked = False
        else:
            looked = True
        done.statuses |= reap_children(note)
        if looked and (not alive or time.monotonic() > deadline):
            done.stuck = alive
            return done
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def _alive(group: AttemptGroup | None) -> list[Process]:
    found = alive_below(os.getpid())
    known = {os.getpid(), *(process.pid for process in found)}
    others = (read_process(pid) for pid in (group.pids() if group else ()) if pid not in known)
    return found + [process for process in others if process is not None and not process.is_over]


def _kill_each(alive: Iterable[Process], kill: Callable[[Process], object]) -> set[int]:
    """Call `kill` for each process in `alive`. Return the pids of the processes that this user
    may not kill. Raises OSError.
    """
    refused = set()
    for process in alive:
        try:
            kill(process)
        except PermissionError:
            refused.add(process.pid)
    return refused


_LONGEST_PLACE = 64
MOST_NAMED = 100
"""Largest number of processes that are listed in a record, because the size of a record is
limited.
"""


def left_behind(
    process: Process, *, rank: int | None = None, refused: bool = False
) -> dict[str, Any]:
    """Return the JSON record of `process`, which is still alive although SIGKILL was sent.

    `rank` is the number of the rank that it is, if any. `refused` is True if this user may not kill
    it.
    """
    return {
        "pid": process.pid,
        "start_ticks": process.start_ticks,
        "boot_id": boot_id(),
        "name": process.name,
        "state": process.state,
        "place": _wait_channel(process.pid),
        "uid": _uid(process.pid),
        "rank": rank,
        "refused": refused,
        "since": time.time(),
    }


def _wait_channel(pid: int) -> str | None:
    """Return the name of the kernel function in which the process `pid` sleeps; None if the kernel
    does not report it.
    """
    try:
        text = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return text[:_LONGEST_PLACE] if text not in ("", "0") else None


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116  # once for each of many
    except OSError:
        return None


def is_still_alive(line: Mapping[str, Any]) -> bool:
    """Return whether the process in `line`, a record of `left_behind`, is still alive."""
    if line.get("boot_id", boot_id()) != boot_id():
        return False
    now = read_process(int(line["pid"]))
    return now is not None and now.start_ticks == line["start_ticks"] and not now.is_over


def in_words(line: Mapping[str, Any], called: Callable[[int], str] = uid_text) -> str:
    """Return a record of `left_behind` as text: `pid 123 (python3) of rank 0, in state D
    (nfs_wait_bit_killable)`.

    `called` maps a uid to the text for this user.
    """
    name, rank = plain_name(line.get("name")), line.get("rank")
    words = f"pid {line['pid']}" + (f" ({name})" if name else "")
    words += f" of rank {rank}" if isinstance(rank, int) else ""
    if line.get("refused") is True:
        uid = line.get("uid")
        return f"{words}, of {called(uid) if type(uid) is int else 'another user'}"
    state, place = plain_name(line.get("state")), plain_name(line.get("place"))
    return words + (f", in state {state}" if state else "") + (f" ({place})" if place else "")


def plain_name(value: object) -> str:
    """Return `value` as one short line of text without control characters.

    Use this for names of processes: a program chooses its own name, and may have written the record
    in which the name was found.
    """
    return (
        "".join(c for c in value[:_LONGEST_PLACE] if c.isprintable())
        if isinstance(value, str)
        else ""
    )
