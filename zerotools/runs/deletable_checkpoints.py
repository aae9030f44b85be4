"""The checkpoints that may be deleted, and the checkpoints that unfinished jobs need.

For each job file that names a checkpoint (`step-...`), the daemon writes one small file in
`needed/` of its state directory: `{"job": 7, "named": [["resume_from", "/runs/a/step-00000040"]]}`.
Rank 0 of a job with `checkpoint.keep_last` reads these files before it deletes a checkpoint. It
does not access the named paths, because another user's file system may not respond. If the daemon
runs jobs of several users, each user has a subdirectory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerotools.runs.find_job_checkpoints import step_of

DIRECTORY = "needed"
STEP = "/step-"
"""The pattern of a checkpoint's directory name in a text."""
LARGEST = 1 << 20


def directory_of_user(uid: int | str) -> str:
    """Return the subdirectory of `DIRECTORY` for the jobs of a user other than the daemon's user.
    If `uid` is `*`, return a pattern that matches the directories of all users."""
    return f"uid-{uid}"


@dataclass(frozen=True)
class NeededCheckpoint:
    """A checkpoint that a job file needs: job number `job` names it under the key `key`."""

    job: int
    key: str
    text: str

    def sentence(self, checkpoint: Path) -> str:
        """Return a sentence that says why `checkpoint` is kept: which job names it."""
        return f"{checkpoint} is old but kept: job {self.job} names it in {self.key}"


def is_within(text: str, place: str) -> bool:
    """Return whether `text` contains the path `place` or a path below it.

    The path may be a part of a longer text, such as one word of a command.
    """
    at = text.find(place)
    while at >= 0:
        following = text[at + len(place) : at + len(place) + 1]
        if not following or not (following.isalnum() or following in "-_."):
            return True
        at = text.find(place, at + 1)
    return False


def first_need(checkpoint: Path, needs: Iterable[NeededCheckpoint]) -> NeededCheckpoint | None:
    """Return the first entry of `needs` that names `checkpoint`, or None if no job needs it."""
    places = {str(checkpoint), os.path.realpath(checkpoint)}
    return next((n for n in needs if any(is_within(n.text, place) for place in places)), None)


def read_needed(directory: Path) -> list[NeededCheckpoint]:
    """Return the checkpoints that unfinished jobs need, from the daemon's files. Unreadable files
    are ignored.
    """
    found: list[NeededCheckpoint] = []
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return found
    for path in paths:
        found += _read(path)
    return found


def _read(path: Path) -> list[NeededCheckpoint]:
    try:
        with path.open("rb") as file:
            tree = json.loads(file.read(LARGEST))
        job, named = int(tree["job"]), tree["named"]
        return [NeededCheckpoint(job, str(key), str(text)) for key, text in named]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


@dataclass(frozen=True)
class KeepRule:
    """The rule that decides which checkpoints are kept: the `last` newest ones (None: all), and the
    checkpoints of steps that are multiples of `every`."""

    last: int | None = None
    every: int | None = None

    def beyond(self, listed: Sequence[Path]) -> list[Path]:
        """Return the checkpoints that may be deleted according to the rule. `listed` are the paths
        of all checkpoints, newest first.
        """
        if self.last is None:
            return []
        return [path for path in listed[self.last :] if not self._is_due(path)]

    def _is_due(self, path: Path) -> bool:
        step = step_of(path.name)
        return self.every is not None and step is not None and step % self.every == 0
