"""Checkpoints that are there whole or not at all.

1. rank 0 makes a staging directory and names it to the others;
2. every rank writes its shards and its random number state into it, fsynced;
3. rank 0 adds the record, the config and last the manifest, and fsyncs the directories;
4. one rename gives it its final name; the `latest` hint follows;
5. checkpoints beyond `keep_last` go, by a rename and then file by file.

A process that dies on the way leaves the older checkpoints as they were, and a staging directory
that the next attempt clears. All waiting is in the control group, whose time limit allows for it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from zerotools.formats.dcp import jobcheckpoint as layout
from zerotools.formats.dcp.jobrecord import JobRecord
from zerotools.io.manifest import write_manifest
from zerotoolsd.trainer import rng
from zerotoolsd.trainer.group import Group

Value = TypeVar("Value")


class SaveFailed(RuntimeError):
    """A checkpoint could not be written; older ones are as they were."""


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint: its size in bytes and the seconds that it took.

    `note` says what went wrong beside it: the `latest` hint, or an old checkpoint's deletion.
    """

    path: Path
    size_bytes: int
    seconds: float
    note: str | None = None


def _nothing(path: Path) -> None:
    """What happens between a complete staging directory and its commit: nothing."""


@dataclass(frozen=True)
class Saver:
    """Writes the checkpoints of one run.

    `write` puts the calling rank's part into a staging directory, `add_files` the config and
    tokenizer. `keep` is a checkpoint that the job file names, which is never deleted.
    `before_commit` is called on rank 0 when all but the manifest is written.
    """

    output_dir: Path
    keep_last: int | None
    group: Group
    write: Callable[[Path], None]
    add_files: Callable[[Path], None]
    keep: Path | None = None
    before_commit: Callable[[Path], None] = _nothing

    def save(self, record: JobRecord) -> Saved:
        """Commit the live state as the checkpoint of `record.step`; all ranks call it together.

        Raises:
            SaveFailed: a rank could not write; on every rank. Nothing was committed, and what was
                staged is deleted.
        """
        started = time.monotonic()
        staging = self._by_rank_zero(lambda: self._make_staging(record.step))
        try:
            self._by_all(lambda: self._write_part(staging))
            path, size, note = self._by_rank_zero(lambda: self._commit(staging, record))
        except SaveFailed:
            if self.group.rank.leads:
                shutil.rmtree(staging, ignore_errors=True)
            raise
        return Saved(path, size, time.monotonic() - started, note)

    def _by_rank_zero(self, act: Callable[[], Value]) -> Value:
        def attempt() -> tuple[Value | None, str | None]:
            try:
                return act(), None
            except OSError as error:
                return None, str(error)

        value, problem = self.group.decided_by_rank_zero(attempt)
        if problem is not None:
            raise SaveFailed(problem)
        return cast(Value, value)

    def _by_all(self, act: Callable[[], None]) -> None:
        problem = None
        try:
            act()
        except (OSError, SaveFailed) as error:
            problem = str(error)
        problems = [one for one in self.group.gathered(problem) if one is not None]
        if problems:
            raise SaveFailed(problems[0])

    def _write_part(self, staging: Path) -> None:
        self.write(staging)
        _write_text(staging / layout.rng_name(self.group.rank.number), rng.capture())

    def _make_staging(self, step: int) -> Path:
        name = f"{layout.STAGING_PREFIX}{step}-{secrets.token_hex(4)}"
        staging = self.output_dir / name
        staging.mkdir(parents=True)
        return staging

    def _commit(self, staging: Path, record: JobRecord) -> tuple[Path, int, str | None]:
        layout.write_record(staging, record)
        self.add_files(staging)
        self.before_commit(staging)
        for file in _files(staging):
            _sync_file(file)
        write_manifest(staging)
        for directory in (*_directories(staging), staging):
            layout.sync_directory(directory)
        size = sum(file.stat().st_size for file in _files(staging))
        path = self.output_dir / layout.directory_name(record.step)
        if path.exists():  # only one that did not verify: a whole one would have been resumed from
            _discard(path)
        staging.rename(path)
        layout.sync_directory(self.output_dir)
        return path, size, self._tidy(path)

    def _tidy(self, newest: Path) -> str | None:
        """The hint and the old checkpoints; what went wrong. `newest` is whole either way."""
        try:
            layout.write_latest(self.output_dir, newest.name)
            self._delete_old(newest)
        except OSError as error:
            return f"{error.filename or self.output_dir}: {error.strerror}"
        return None

    def _delete_old(self, newest: Path) -> None:
        if self.keep_last is None:
            return
        pinned = {
            path.resolve()
            for path in (newest, layout.latest(self.output_dir), self.keep)
            if path is not None
        }
        for path in layout.listing(self.output_dir)[self.keep_last :]:
            if path.resolve() not in pinned:
                _discard(path)


def clear_leftovers(output_dir: Path) -> None:
    """Delete what attempts that died left half-made or half-deleted."""
    if not output_dir.is_dir():
        return
    for path in list(output_dir.iterdir()):
        if path.name.startswith((layout.STAGING_PREFIX, layout.TRASH_PREFIX)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _discard(path: Path) -> None:
    trash = path.with_name(f"{layout.TRASH_PREFIX}{path.name}-{secrets.token_hex(4)}")
    path.rename(trash)
    shutil.rmtree(trash)


def _directories(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_dir())


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    _sync_file(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
