"""Writes files (pins) that name the checkpoints which other jobs need. Ranks read the pins before
they delete old checkpoints.

The checkpoints that a job needs are published before the job is checked. So a checkpoint that
exists during the check is not deleted before the job has begun. The pins
(`zerotools.runs.deletable_checkpoints`) are not flushed to the disk, because the next daemon writes
them again.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from zerotools.jobs import states
from zerotools.runs.deletable_checkpoints import DIRECTORY, STEP, directory_of_user
from zerotoolsd.dispatch.remove_job_files import NamedPath, texts_of
from zerotoolsd.queue.store import Store
from zerotoolsd.users.open_as_user import let_through, make_owned, opened_run_directory
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers
from zerotoolsd.users.start_as_submitter import JobUser

_COMING = "coming-"
MOST_SEEN, MOST_FORGOTTEN = 20_000, 1000
"""Largest number of file names that are read in the directory of a user at a time, and of files
that are removed at a time.
"""
_UNFINISHED = [state for state in states.STATES if state not in states.TERMINAL]

log = logging.getLogger(__name__)


class SubmittedJobPins:
    """The pins of a job that is being submitted. They publish the checkpoints that the job needs,
    before the job has a number.
    """

    def __init__(self, place: PinDirectory, text: str) -> None:
        self._pins = place
        self._named = {(key, word) for key, word in texts_of(json.loads(text)) if STEP in word}
        self._path: str | None = None
        self._write()

    def _write(self) -> None:
        if not self._named:
            return
        self._path = self._path or f"{_COMING}{secrets.token_hex(8)}"
        self._pins.write(self._path, 0, self._named)

    def add_resolved_paths(self, named_paths: Sequence[NamedPath]) -> None:
        """Also publish the paths with links resolved, because a link may lead to a checkpoint."""
        found = {(each.key, each.real) for each in named_paths if STEP in each.real}
        if not found <= self._named:
            self._named |= found
            self._write()

    def set_job_id(self, job_id: int) -> None:
        """Publish the checkpoints also under the number that the job has got in the queue."""
        if self._path is not None:
            self._pins.write(str(job_id), job_id, self._named)

    def end(self) -> None:
        """Remove the published entry, because the job has been accepted or refused."""
        if self._path is not None:
            self._pins.remove(self._path)


class CheckpointPins:
    """Publishes which checkpoints the jobs in `store` need, in files (pins) below `state_dir`."""

    def __init__(self, state_dir: Path, store: Store, users: ServedUsers = OWN_ONLY) -> None:
        self._directory = state_dir / DIRECTORY
        self._store = store
        self._users = users

    def _directory_of(self, uid: int) -> PinDirectory:
        """Return the directory with the pins of one user's jobs. Only this user's ranks read it."""
        user = self._users.for_files(uid)
        if user is None:
            return PinDirectory(self._directory)
        return PinDirectory(self._directory / directory_of_user(uid), user)

    @contextmanager
    def pin_submitted(self, text: str, uid: int) -> Iterator[SubmittedJobPins]:
        """Publish the checkpoints that a new job of the user `uid` needs, while the job is
        checked and queued.

        `text` is the job file as JSON.
        """
        job = SubmittedJobPins(self._directory_of(uid), text if STEP in text else "{}")
        try:
            yield job
        finally:
            job.end()

    def begin(self) -> None:
        """Write missing pins and remove pins that are not needed, at the start of the daemon.

        Existing pins stay unchanged, because they also have the resolved links.
        """
        self.settle(coming=True)
        for job_id, text in self._store.specs_with(STEP):
            place = self._directory_of(self._store.job(job_id).uid)
            if not place.has(str(job_id)):
                with suppress(ValueError, RecursionError):  # a record that cannot be read
                    named = {one for one in texts_of(json.loads(text)) if STEP in one[1]}
                    place.write(str(job_id), job_id, named)

    def settle(self, *, coming: bool = False) -> None:
        """Remove the pins of ended jobs. With `coming`, also remove the pins of submitted jobs that
        were never queued.
        """
        live = {str(number) for state in _UNFINISHED for number in self._store.ids(state)}
        with suppress(FileNotFoundError):
            _forget(self._directory, live, coming=coming)
            for path in self._directory.glob(directory_of_user("*")):
                with suppress(OSError), opened_run_directory(path) as base:
                    _forget(base, live, coming=coming, most=MOST_SEEN)


def _forget(
    directory: Path, live: Container[str], *, coming: bool, most: int | None = None
) -> None:
    """Remove the pins in `directory` that are not in `live`.

    `most` is the largest number of file names that are read, because a directory of a user
    may contain anything.
    """
    gone = 0
    with os.scandir(directory) as entries:
        for entry in islice(entries, most):
            if entry.name not in live and (coming or not entry.name.startswith(_COMING)):
                with suppress(OSError):
                    (directory / entry.name).unlink()
                gone += 1
            if most is not None and gone == MOST_FORGOTTEN:
                return


@dataclass(frozen=True)
class PinDirectory:
    """The directory with the pins for the jobs of `user`, who owns the directory. None: the user of
    the daemon.
    """

    directory: Path
    user: JobUser | None = None

    def has(self, name: str) -> bool:
        """Return whether the directory contains a pin with the name `name`."""
        try:
            with opened_run_directory(self.directory) as base:
                return (base / name).exists()
        except OSError:
            return False

    def remove(self, name: str) -> None:
        """Remove the pin with this name."""
        with suppress(OSError), opened_run_directory(self.directory) as base:
            (base / name).unlink(missing_ok=True)

    def write(self, name: str, job_id: int, named: set[tuple[str, str]]) -> None:
        """Write the paths `named`, which the job `job_id` needs, into the pin `name`."""
        text = json.dumps({"job": job_id, "named": sorted(named)})
        try:
            self._make()
            with opened_run_directory(self.directory) as base:
                staged = base / f".{name}.new"
                staged.unlink(missing_ok=True)
                with staged.open("x", encoding="ascii") as file:  # not a file that a user put there
                    file.write(text)
                staged.replace(base / name)
        except OSError as error:  # a checkpoint may be lost; this does not refuse the job
            path = self.directory / name
            log.error(
                "%s: the checkpoints that job %d needs are not protected: %s", path, job_id, error
            )

    def _make(self) -> None:
        if self.user is None:
            self.directory.mkdir(exist_ok=True, mode=0o700)
            return
        self.directory.parent.mkdir(exist_ok=True, mode=0o700)
        let_through(self.directory.parent, 0o711)
        make_owned(self.directory, self.user.account)
