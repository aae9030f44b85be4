"""Keeps what ranks are told of the needs of other jobs (`zerotools.runs.needed`), job by job.

What a job needs is told before it is looked at: a checkpoint that is there then is not deleted
before the job has begun. Nothing of it is flushed: the next daemon writes it anew.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from zerotools.jobs import states
from zerotools.runs.needed import DIRECTORY, STEP
from zerotoolsd.cleaning.removal import Mention, texts_of
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.store import Store

_COMING = "coming-"
_UNFINISHED = [state for state in states.STATES if state not in states.TERMINAL]

log = logging.getLogger(__name__)


class ComingJob:
    """A job on its way into the queue. `path` is None where it names no checkpoint."""

    def __init__(self, directory: Path, text: str) -> None:
        self._directory = directory
        self._named = {(key, word) for key, word in texts_of(json.loads(text)) if STEP in word}
        self._path: Path | None = None
        self._write()

    def _write(self) -> None:
        if not self._named:
            return
        self._path = self._path or self._directory / f"{_COMING}{secrets.token_hex(8)}"
        _write(self._path, 0, self._named)

    def seen(self, mentions: Sequence[Mention]) -> None:
        """Its paths with links followed, which may lead to a checkpoint."""
        found = {(each.key, each.real) for each in mentions if STEP in each.real}
        if not found <= self._named:
            self._named |= found
            self._write()

    def taken(self, job: JobRow) -> None:
        """It is queued under this number."""
        if self._path is not None:
            _write(self._directory / str(job.id), job.id, self._named)

    def end(self) -> None:
        """It was taken or refused."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class NeededCheckpoints:
    """What the jobs in `store` need, in `state_dir`."""

    def __init__(self, state_dir: Path, store: Store) -> None:
        self._directory = state_dir / DIRECTORY
        self._store = store

    @contextmanager
    def coming(self, text: str) -> Iterator[ComingJob]:
        """For the time in which a job, whose JSON is `text`, is looked at and queued."""
        job = ComingJob(self._directory, text if STEP in text else "{}")
        try:
            yield job
        finally:
            job.end()

    def begin(self) -> None:
        """Write what is missing, and forget what nobody needs any more. Links of jobs of an earlier
        daemon are known from it."""
        self.settle(coming=True)
        for job_id, text in self._store.specs_with(STEP):
            path = self._directory / str(job_id)
            if not path.exists():
                with suppress(ValueError, RecursionError):  # a record that nobody can read
                    _write(
                        path, job_id, {one for one in texts_of(json.loads(text)) if STEP in one[1]}
                    )

    def settle(self, *, coming: bool = False) -> None:
        """Forget the jobs that are over; `coming`: and those that never came."""
        live = {str(number) for state in _UNFINISHED for number in self._store.ids(state)}
        with suppress(FileNotFoundError):
            for path in self._directory.iterdir():
                if path.name not in live and (coming or not path.name.startswith(_COMING)):
                    with suppress(OSError):
                        path.unlink()


def _write(path: Path, job_id: int, named: set[tuple[str, str]]) -> None:
    text = json.dumps({"job": job_id, "named": sorted(named)})
    staged = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        staged.write_text(text, encoding="ascii")
        staged.replace(path)
    except OSError as error:  # without it a checkpoint may go; the job is not refused for that
        log.error("%s: what job %d needs is not kept from deletion: %s", path, job_id, error)
