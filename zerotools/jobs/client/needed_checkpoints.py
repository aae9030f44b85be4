"""Which checkpoints the jobs of a daemon need: those that they would resume from.

A job that is not over goes on from the newest checkpoint of its own, whichever it has reported or
its directories hold, and a first attempt from `resume_from`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import STATES, TERMINAL
from zerotools.runs import checkpoint_dirs

UNFINISHED = tuple(state for state in STATES if state not in TERMINAL)
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Need:
    """A path that a job which is not over resumes from, and how it says so."""

    job: int
    name: str
    state: str
    path: Path
    why: str

    def concerns(self, checkpoint: Path) -> bool:
        """Whether it is `checkpoint`, a part of it, or a directory that it may be chosen from."""
        own, needed = checkpoint.resolve(), self.path.resolve()
        return own == needed or own in needed.parents or needed in own.parents

    def sentence(self, checkpoint: Path) -> str:
        """Why `checkpoint` must stay as it is."""
        called = f" ({self.name})" if self.name else ""
        return (
            f"{checkpoint} is needed by job {self.job}{called}, which is {self.state}: {self.why}; "
            "wait for the job, or cancel it"
        )


def needs(client: DaemonClient) -> list[Need]:
    """What the jobs that are not over need.

    Raises:
        DaemonError: the daemon does not answer.
    """
    return [need for job in _jobs(client) for need in needs_of(job)]


def needs_of(job: Mapping[str, Any]) -> Iterator[Need]:
    """What one job needs, by the view that the daemon gives of it."""
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
        newest = next(iter(checkpoint_dirs.listing(Path(str(job["output_dir"])))), None)
        if newest is not None:
            yield newest, "it is the newest in its output directory"
    spec = job.get("spec") or {}
    script = spec.get("script") or {}
    if directory := script.get("checkpoint_dir"):
        newest = _newest_entry(Path(str(directory)))
        if newest is not None:
            yield newest, f"it is the newest in script.checkpoint_dir = {directory}"
    if given := spec.get("resume_from"):
        yield _meant(Path(str(given))), f"resume_from = {given}"


def _meant(path: Path) -> Path:
    """What `resume_from` means: of a directory of a job's checkpoints, the newest."""
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


def _jobs(client: DaemonClient) -> Iterator[Mapping[str, Any]]:
    for state in UNFINISHED:
        after: int | None = None
        while True:
            found = client.jobs(state=state, limit=_PAGE, after=after)
            yield from found
            if len(found) < _PAGE:
                break
            after = min(int(job["id"]) for job in found)
