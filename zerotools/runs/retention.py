"""Checkpoints that unfinished jobs need, for the ranks that delete old ones.

The daemon keeps one small file for each job that names a checkpoint (`step-...`) anywhere in its
job file, in `needed/` of its state directory: `{"job": 7, "named": [["resume_from",
"/runs/a/step-00000040"]]}`. Rank 0 of a job with `checkpoint.keep_last` reads them before it
deletes anything. It does not access the named paths: another user's path may not respond. If the
daemon runs jobs of several users, those of one user's jobs are in a directory of that user below
it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerotools.runs.checkpoint_dirs import step_of

DIRECTORY = "needed"
STEP = "/step-"
"""The part of a text that names one checkpoint of a job."""
LARGEST = 1 << 20


def directory_of_user(uid: int | str) -> str:
    """Return the directory of another user than the daemon's, below DIRECTORY; `*`: of each."""
    return f"uid-{uid}"


@dataclass(frozen=True)
class Needed:
    """A text in which the job `job` names a checkpoint, under the key `key`."""

    job: int
    key: str
    text: str

    def sentence(self, checkpoint: Path) -> str:
        """Return why `checkpoint` stays."""
        return f"{checkpoint} is old but kept: job {self.job} names it in {self.key}"


def is_within(text: str, place: str) -> bool:
    """Return whether `text` names `place` or something in it, also as a part of a longer text, such
    as a word of a command."""
    at = text.find(place)
    while at >= 0:
        following = text[at + len(place) : at + len(place) + 1]
        if not following or not (following.isalnum() or following in "-_."):
            return True
        at = text.find(place, at + 1)
    return False


def needed_by(checkpoint: Path, needs: Iterable[Needed]) -> Needed | None:
    """Return the first of `needs` that is on `checkpoint`."""
    places = {str(checkpoint), os.path.realpath(checkpoint)}
    return next((n for n in needs if any(is_within(n.text, place) for place in places)), None)


def read_needed(directory: Path) -> list[Needed]:
    """Return all that is needed; unreadable files are ignored."""
    found: list[Needed] = []
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return found
    for path in paths:
        found += _read(path)
    return found


def _read(path: Path) -> list[Needed]:
    try:
        with path.open("rb") as file:
            tree = json.loads(file.read(LARGEST))
        job, named = int(tree["job"]), tree["named"]
        return [Needed(job, str(key), str(text)) for key, text in named]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


@dataclass(frozen=True)
class KeepRule:
    """Keep the `last` newest checkpoints (None: all), and those with a step that `every`
    divides."""

    last: int | None = None
    every: int | None = None

    def beyond(self, listed: Sequence[Path]) -> list[Path]:
        """Return the checkpoints that may go, of `names` with the newest first."""
        if self.last is None:
            return []
        return [path for path in listed[self.last :] if not self._is_due(path)]

    def _is_due(self, path: Path) -> bool:
        step = step_of(path.name)
        return self.every is not None and step is not None and step % self.every == 0
