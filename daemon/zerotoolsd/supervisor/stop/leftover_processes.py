"""Finds the processes that are left when the ranks have ended, and those that pass on output.

With `exec > >(tee log)`, or a loop that adds time stamps, all output of a script goes through
another process. That process ends only after the script, when it has read the last line. All
functions raise OSError if the machine has no file descriptors left.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from zerotoolsd.supervisor.procfs import Process, children_of, read_process
from zerotoolsd.supervisor.stop import keep_pipes_open
from zerotoolsd.supervisor.stop.kill_descendants import in_words
from zerotoolsd.supervisor.stop.process_kinds import is_filter

_MOST_LISTED = 4


def processes_left(excluded_pids: Collection[int | None]) -> list[Process]:
    """Return the descendants of this process that have not ended, each parent before its children.

    `excluded_pids` are the pids of children that do not belong to the job.
    """
    found = [child for child in children_of(os.getpid()) if child.pid not in excluded_pids]
    for process in found:  # the list grows meanwhile
        found += children_of(process.pid)
    return found


def passing_on(left: Sequence[Process]) -> list[Process]:
    """Return the processes among `left` that still pass on output of ranks that have ended.

    Such a process reads a pipe to which nobody writes any more, except others of the result: it
    finds the end of the pipe, and ends. A filter whose pipe has other writers, such as a program in
    the background, is in the result until it has read everything.
    """
    ends = {process.pid: keep_pipes_open.ends_of(process.pid) for process in left}
    above = {process.pid: process.parent for process in left}
    chosen = {pid for pid, (reads, _) in ends.items() if reads}
    while True:
        rejected = {pid for pid in chosen if not _will_end(pid, chosen, ends, above)}
        if not rejected:
            break
        chosen -= rejected
    return [each for each in left if each.pid in chosen or (is_filter(each) and _is_busy(each))]


def cut_short(left: Sequence[Process]) -> str | None:
    """Return a sentence on the processes that a program has left behind when it ended, and that
    are killed now; None if there are none.
    """
    if not left:
        return None
    names = ", ".join(in_words({"pid": p.pid, "name": p.name}) for p in left[:_MOST_LISTED])
    more = f" and {len(left) - _MOST_LISTED} more" if len(left) > _MOST_LISTED else ""
    was = "was" if len(left) == 1 else "were"
    return f"{names}{more} still ran when the program of the job ended, and {was} killed"


def _will_end(
    reader: int,
    chosen: Collection[int],
    ends: Mapping[int, tuple[dict[str, str], frozenset[str]]],
    above: Mapping[int, int],
) -> bool:
    """Return whether `reader` reads a pipe that only other readers in `chosen`, or processes below
    them, write to.
    """
    living: set[str] = set()
    for pid, (_, written) in ends.items():
        at: int | None = pid
        while at is not None and (at == reader or at not in chosen):
            at = above.get(at)
        if at is None and pid != reader:
            living |= written
    return bool(ends[reader][0].keys() - living)


def _is_busy(process: Process) -> bool:
    """Return whether the filter `process` has output of others to read or to write."""
    state = read_process(process.pid)
    if state is None or state.is_over:
        return False
    reads, _ = keep_pipes_open.ends_of(process.pid)
    has_unread = any(keep_pipes_open.has_unread(process.pid, number) for number in reads.values())
    return bool(reads) and (has_unread or state.state != "S")
