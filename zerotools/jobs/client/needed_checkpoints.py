"""The checkpoints that the jobs of a daemon need: those that they would resume from.

An unfinished job continues from its newest checkpoint, reported or in its directories, and a
first attempt from `resume_from`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from zerotools.core.errors import BadRequest, DaemonError, ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.need_looks import NeedLooker
from zerotools.jobs.states import STATES, TERMINAL
from zerotools.runs import checkpoint_dirs

NOT_CHECKED = "no daemon answers, so it was not checked whether a job would resume from it"
COMMAND = (sys.executable, "-P", __file__)
UNFINISHED = tuple(state for state in STATES if state not in TERMINAL)


@dataclass(frozen=True, slots=True)
class Need:
    """A path that an unfinished job resumes from, and the path as the job spells it."""

    job: int
    name: str
    state: str
    path: Path
    why: str
    real: Path | None = None
    """The path with links followed, if it is known."""

    def concerns(self, checkpoint: Path) -> bool:
        """Return whether it is `checkpoint`, a part of it, or a directory that it may be chosen
        from."""
        own, needed = checkpoint.resolve(), self.real or self.path.resolve()
        return own == needed or own in needed.parents or needed in own.parents

    def sentence(self, checkpoint: Path) -> str:
        """Return why `checkpoint` must stay as it is."""
        called = f" ({self.name})" if self.name else ""
        return (
            f"{checkpoint} is needed by job {self.job}{called}, which is {self.state}: {self.why}; "
            "wait for the job, or cancel it"
        )


class NeedGuard:
    """Refuses checkpoints that jobs of a daemon need. `answers` is whether the daemon responded."""

    def __init__(self, socket: Path | None = None) -> None:
        """Make a guard; `socket` is the daemon's, by default the usual path."""
        self._socket = socket
        self.answers = False

    def refuse(self, checkpoint: Path) -> None:
        """Ask the daemon, as jobs come and go.

        Raises:
            BadRequest: a job needs `checkpoint`.
        """
        found = needs_at(self._socket)
        self.answers = found is not None
        refuse_needed(checkpoint, found or ())


def needs_at(socket: Path | None = None) -> list[Need] | None:
    """Return the needs of the jobs of the daemon at `socket`; None: none answers."""
    try:
        return needs(DaemonClient(socket))
    except DaemonError:
        return None


def refuse_needed(checkpoint: Path, found: Iterable[Need]) -> None:
    """Raise BadRequest if one of `found` is on `checkpoint`."""
    need = next((each for each in found if each.concerns(checkpoint)), None)
    if need is not None:
        raise BadRequest(need.sentence(checkpoint))


def needs(client: DaemonClient, looker: NeedLooker | None = None) -> list[Need]:
    """Return the needs of unfinished jobs. No file system can block this.

    Raises:
        DaemonError: the daemon does not answer.
    """
    # A job may change its state between two requests: to one that was requested already.
    jobs = {job["id"]: job for again in (False, True) for job in _jobs(client, again=again)}
    looker = NeedLooker(COMMAND) if looker is None else looker
    try:
        return [need for job in jobs.values() for need in _looked_up(looker, job)]
    finally:
        looker.close()


def _looked_up(looker: NeedLooker, job: Mapping[str, Any]) -> Iterator[Need]:
    """Yield the needs of one job; if its directories do not respond, everything that it names."""
    about = (int(job["id"]), str(job.get("name") or ""), str(job["state"]))
    found = looker.needs(job)
    if found is not None:
        for each in found:
            yield Need(*about, Path(each.path), each.why, Path(each.real))
        return
    silent = "it names it, and its directories do not respond"
    spec = job.get("spec") or {}
    named = [
        *(job.get("output_dir"), (job.get("latest_checkpoint") or {}).get("path")),
        *(spec.get("resume_from"), (spec.get("script") or {}).get("checkpoint_dir")),
        *(each.get("resumed_from") for each in job.get("attempts") or ()),
    ]
    for path in dict.fromkeys(str(each) for each in named if each):
        yield Need(*about, Path(path), silent, Path(os.path.normpath(path)))


def needs_of(job: Mapping[str, Any]) -> Iterator[Need]:
    """Yield the needs of one job, by the daemon's view of it."""
    for path, why in _paths(job):
        yield Need(int(job["id"]), str(job.get("name") or ""), str(job["state"]), path, why)


def _paths(job: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    reported = job.get("latest_checkpoint")
    if isinstance(reported, Mapping) and reported.get("path"):
        yield Path(str(reported["path"])), "it is the newest checkpoint that it reported"
    attempts = job.get("attempts") or ()
    if attempts and (before := attempts[-1].get("resumed_from")):
        yield Path(str(before)), "its attempt began from it"
    if job.get("output_dir"):
        yield from _own(Path(str(job["output_dir"])))
    spec = job.get("spec") or {}
    script = spec.get("script") or {}
    if directory := script.get("checkpoint_dir"):
        newest = _newest_entry(Path(str(directory)))
        if newest is not None:
            yield newest, f"it is the newest in script.checkpoint_dir = {directory}"
    if given := spec.get("resume_from"):
        yield _meant(Path(str(given))), f"resume_from = {given}"


def _own(output_dir: Path) -> Iterator[tuple[Path, str]]:
    """Yield the newest checkpoint of a job, and the one that it continues from if that is
    damaged."""
    newest = next(iter(checkpoint_dirs.listing(output_dir)), None)
    if newest is None:
        return
    yield newest, "it is the newest in its output directory"
    whole = checkpoint_dirs.choose(output_dir, digests=False).path
    if whole not in (None, newest):
        yield (
            whole,
            (
                f"it is the newest complete one in its output directory, because {newest} is not "
                "complete"
            ),
        )


def _meant(path: Path) -> Path:
    """Return the checkpoint of `resume_from`: of a directory of a job's checkpoints, the newest."""
    try:
        return checkpoint_dirs.resolve(path, digests=False).path or path
    except (ZerotoolsError, OSError):  # another program's, or none yet: it is named itself
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


def main() -> None:
    """Answer a `NeedLooker` until its input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        found = [(str(n.path), os.path.realpath(n.path), n.why) for n in needs_of(json.loads(line))]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
