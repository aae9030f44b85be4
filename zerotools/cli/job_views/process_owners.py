"""Finds the owner of each process of this machine: a job, or a user.

A rank of a job is recognised by a variable in its environment, which only its user and root can
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from zerotools.jobs.jobfile_tables.script import AdoptedProcess

RUN_DIR_VARIABLE = "ZEROTOOLS_RUN_DIR"


@dataclass(frozen=True)
class RankProcess:
    """A process of a job: the run directory of its attempt, and its resident memory."""

    run_dir: str
    rss_bytes: int


class Owners:
    """The owners of all processes at one moment.

    `jobs_by_run_dir` maps the run directory of an attempt to the title of its job, such as `job 7
    (tiny)`.
    """

    def __init__(
        self, jobs_by_run_dir: Mapping[str, str], ranks: Mapping[int, RankProcess]
    ) -> None:
        self._titles = jobs_by_run_dir
        self._ranks = ranks

    def host_bytes(self, run_dir: str) -> int | None:
        """Return the resident memory of all processes of an attempt, in bytes; None if none of its
        processes is visible to this user.

        A page that several processes share is counted once for each of these processes.
        """
        sizes = [rank.rss_bytes for rank in self._ranks.values() if rank.run_dir == run_dir]
        return sum(sizes) if sizes else None

    def of(self, pid: int) -> str:
        """Return the owner of a process: `job 7 (tiny)`, or the user and the command, `ada: python
        train.py`.
        """
        if (rank := self._ranks.get(pid)) is not None:
            return self._titles.get(rank.run_dir, f"a job of another daemon ({rank.run_dir})")
        try:
            process = psutil.Process(pid)
            return f"{process.username()}: {' '.join(process.cmdline() or [process.name()])}"
        except psutil.NoSuchProcess:
            return "not visible from here (another container?)"
        except psutil.Error:
            return "not readable"


def find_ranks(processes: Iterable[psutil.Process]) -> dict[int, RankProcess]:
    """Return the processes that belong to jobs of any daemon, keyed by pid."""
    found = {}
    for process in processes:
        try:
            run_dir = process.environ().get(RUN_DIR_VARIABLE)
            if run_dir:
                found[process.pid] = RankProcess(run_dir, process.memory_info().rss)
        except (psutil.Error, OSError):
            continue  # the process has ended, or belongs to another user
    return found


def find_watched(run_dir: str, watched: AdoptedProcess) -> dict[int, RankProcess]:
    """Return the process that a job watches, and its descendants, keyed by pid; empty if the
    process has ended.
    """
    found = {}
    try:
        root = psutil.Process(watched.pid)
        if _start_ticks(watched.pid) != watched.start_ticks:
            return {}
        for process in (root, *root.children(recursive=True)):
            found[process.pid] = RankProcess(run_dir, process.memory_info().rss)
    except (psutil.Error, OSError):
        pass  # a process that has ended is not shown
    return found


def _start_ticks(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_bytes()
    return int(text[text.rindex(b")") + 2 :].split()[19])


def find_owners(
    jobs_by_run_dir: Mapping[str, str], watched: Mapping[str, AdoptedProcess] | None = None
) -> Owners:
    """Return the owners of all current processes. `watched` has the processes that jobs watch,
    keyed by the run directory of the attempt.
    """
    ranks = find_ranks(psutil.process_iter())
    for run_dir, process in (watched or {}).items():
        ranks |= find_watched(run_dir, process)
    return Owners(jobs_by_run_dir, ranks)
