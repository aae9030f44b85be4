"""Find the checkpoints that the jobs of a daemon would resume from. These checkpoints must not be
removed.

An unfinished job resumes from its newest checkpoint: the last checkpoint that the job reported, or
the newest in its directories. A job without checkpoints begins from `resume_from`. The directories
are read by a child process (this module as a program), because a file system may hang.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from zerotools.core.errors import BadRequest, DaemonError, ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import STATES, TERMINAL
from zerotools.runs import find_job_checkpoints

NOT_CHECKED = "no daemon answers, so it is not known whether a job would resume from the checkpoint"
COMMAND = (sys.executable, "-P", __file__)
UNFINISHED = tuple(state for state in STATES if state not in TERMINAL)
DEADLINE_SECONDS, START_SECONDS = 5.0, 20.0
"""Time limits in seconds: for reading the directories of one job, and for starting a child
process.
"""
MOST_HANGING = 4
_KEYS = ("id", "name", "state", "latest_checkpoint", "attempts", "output_dir", "spec")


@dataclass(frozen=True, slots=True)
class ResumePath:
    """A path that an unfinished job resumes from."""

    job: int
    name: str
    state: str
    path: Path
    why: str
    real: Path | None = None
    """The path with all symbolic links resolved; None if this is not known."""

    def concerns(self, checkpoint: Path) -> bool:
        """Return whether the job needs the directory `checkpoint`.

        This is the case if the job's path is `checkpoint`, is inside `checkpoint`, or contains it.
        """
        own, needed = checkpoint.resolve(), self.real or self.path.resolve()
        return own == needed or own in needed.parents or needed in own.parents

    def sentence(self, checkpoint: Path) -> str:
        """Return a sentence that says why `checkpoint` must not be changed."""
        called = f" ({self.name})" if self.name else ""
        return (
            f"{checkpoint} is needed by job {self.job}{called}, which is {self.state}: {self.why}; "
            "wait for the job, or cancel it"
        )


class NeedGuard:
    """Prevents changes to checkpoints that a daemon's jobs need.

    `answers` is true if the daemon answered the last request.
    """

    def __init__(self, socket: Path | None = None) -> None:
        """Prepare to ask the daemon at `socket` (default: the usual path)."""
        self._socket = socket
        self.answers = False

    def refuse(self, checkpoint: Path) -> None:
        """Raise an error if a job needs `checkpoint`. The daemon is asked each time.

        Raises:
            BadRequest: a job needs the checkpoint.
        """
        found = needs_at(self._socket)
        self.answers = found is not None
        refuse_needed(checkpoint, found or ())


def needs_at(socket: Path | None = None) -> list[ResumePath] | None:
    """Return the paths that jobs of the daemon at `socket` need; None if no daemon answers."""
    try:
        return needed_paths(DaemonClient(socket))
    except DaemonError:
        return None


def refuse_needed(checkpoint: Path, found: Iterable[ResumePath]) -> None:
    """Raise BadRequest if a job needs `checkpoint`. `found` are the paths that all unfinished jobs
    need.
    """
    need = next((each for each in found if each.concerns(checkpoint)), None)
    if need is not None:
        raise BadRequest(need.sentence(checkpoint))


def needed_paths(client: DaemonClient, reader: NeededPathReader | None = None) -> list[ResumePath]:
    """Return the paths that all unfinished jobs need.

    A file system that hangs does not block the call.

    Raises:
        DaemonError: the daemon does not answer.
    """
    # A job may change to a state that was requested already, so all states are requested twice.
    jobs = {job["id"]: job for again in (False, True) for job in _jobs(client, again=again)}
    reader = NeededPathReader(COMMAND) if reader is None else reader
    try:
        return [need for job in jobs.values() for need in _paths_in_time(reader, job)]
    finally:
        reader.close()


def _paths_in_time(reader: NeededPathReader, job: Mapping[str, Any]) -> Iterator[ResumePath]:
    """Yield the paths that one job needs.

    If the file system of the job's directories does not respond, yield every path in the job file
    instead.
    """
    about = (int(job["id"]), str(job.get("name") or ""), str(job["state"]))
    found = reader.needs(job)
    if found is not None:
        for each in found:
            yield ResumePath(*about, Path(each.path), each.why, Path(each.real))
        return
    silent = "the job file names it, and the file system does not respond"
    spec = job.get("spec") or {}
    named = [
        *(job.get("output_dir"), (job.get("latest_checkpoint") or {}).get("path")),
        *(spec.get("resume_from"), (spec.get("script") or {}).get("checkpoint_dir")),
        *(each.get("resumed_from") for each in job.get("attempts") or ()),
    ]
    for path in dict.fromkeys(str(each) for each in named if each):
        yield ResumePath(*about, Path(path), silent, Path(os.path.normpath(path)))


def needs_of(job: Mapping[str, Any]) -> Iterator[ResumePath]:
    """Yield the paths that one job needs.

    `job` is the job as the daemon returns it. The job's directories are read.
    """
    for path, why in _paths(job):
        yield ResumePath(int(job["id"]), str(job.get("name") or ""), str(job["state"]), path, why)


def _paths(job: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    reported = job.get("latest_checkpoint")
    if isinstance(reported, Mapping) and reported.get("path"):
        yield Path(str(reported["path"])), "it is the newest checkpoint that the job reported"
    attempts = job.get("attempts") or ()
    if attempts and (before := attempts[-1].get("resumed_from")):
        yield Path(str(before)), "the newest attempt of the job started from it"
    if job.get("output_dir"):
        yield from _own(Path(str(job["output_dir"])))
    spec = job.get("spec") or {}
    script = spec.get("script") or {}
    if directory := script.get("checkpoint_dir"):
        newest = _newest_entry(Path(str(directory)))
        if newest is not None:
            yield newest, f"it is the newest checkpoint in script.checkpoint_dir = {directory}"
    if given := spec.get("resume_from"):
        yield _checkpoint_of(Path(str(given))), f"the job has resume_from = {given}"


def _own(output_dir: Path) -> Iterator[tuple[Path, str]]:
    """Yield the newest checkpoint in `output_dir`. If it is damaged, also yield the older
    checkpoint from which the job would resume."""
    newest = next(iter(find_job_checkpoints.list_checkpoints(output_dir)), None)
    if newest is None:
        return
    yield newest, "it is the newest checkpoint in the job's output directory"
    whole = find_job_checkpoints.newest_valid(output_dir, digests=False).path
    if whole not in (None, newest):
        yield (
            whole,
            (
                "it is the newest complete checkpoint in the job's output directory, because "
                f"{newest} is not complete"
            ),
        )


def _checkpoint_of(path: Path) -> Path:
    """Return the checkpoint from which a job with `resume_from = path` resumes.

    If `path` is a directory of checkpoints, this is the newest checkpoint in it.
    """
    try:
        return find_job_checkpoints.resolve_resume_from(path, digests=False).path or path
    except (ZerotoolsError, OSError):  # not a checkpoint of ours, or no checkpoint yet
        return path


def _newest_entry(directory: Path) -> Path | None:
    try:
        found = [(entry.stat().st_mtime_ns, entry) for entry in directory.iterdir()]
    except OSError:
        return None
    return max((each for each in found if each[1].is_dir()), default=(0, None))[1]


def _jobs(client: DaemonClient, *, again: bool) -> Iterator[Mapping[str, Any]]:
    for state in reversed(UNFINISHED) if again else UNFINISHED:
        yield from client.every_job(state=state)


class NeededPath(NamedTuple):
    """A path that a job needs. `real` is the same path with all symbolic links resolved."""

    path: str
    real: str
    why: str


class NeededPathReader:
    """Reads the directories of jobs in a child process.

    If the child process hangs, a new child process is started.
    """

    def __init__(
        self,
        command: Sequence[str],
        deadline_seconds: float = DEADLINE_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._command = command
        self._deadline, self._start_allowance = deadline_seconds, start_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._hanging = 0

    def needs(self, job: Mapping[str, Any]) -> list[NeededPath] | None:
        """Return the paths that the job needs; None if the file system of the job's directories
        does not respond.
        """
        if self._hanging >= MOST_HANGING:
            return None
        child = self._child
        if child is None:
            child = self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            if self._answer(child, self._start_allowance) is None:
                self._give_up(child)  # else its first line would be read as an answer
                return None
        asked = json.dumps({key: job[key] for key in _KEYS if key in job}).encode() + b"\n"
        with suppress(BrokenPipeError):
            assert child.stdin is not None
            child.stdin.write(asked)
            child.stdin.flush()
        line = self._answer(child, self._deadline)
        if line is None:
            self._give_up(child)
            return None
        return [NeededPath(*each) for each in json.loads(line)]

    def _give_up(self, child: subprocess.Popen[bytes]) -> None:
        self._hanging += 1
        self._kill(child)

    def _answer(self, child: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        assert child.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._received:
            left = max(0.0, until - time.monotonic())
            if not select.select([child.stdout], [], [], left)[0]:
                return None
            if not (data := os.read(child.stdout.fileno(), 1 << 16)):
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        """Kill the child process, but do not wait for its end: a process that hangs in the
        kernel may end late.
        """
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        child.returncode = 0  # so that Popen does not wait for its end
        self._child, self._received = None, b""

    def close(self) -> None:
        """End the child process."""
        if (child := self._child) is not None:
            child.kill()
            child.wait()
            self._kill(child)


def main() -> None:
    """Run the child process: read requests of a `NeededPathReader` from stdin, and answer them,
    until stdin is closed.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        found = [(str(n.path), os.path.realpath(n.path), n.why) for n in needs_of(json.loads(line))]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
