"""The work of rank 0 in `output_dir`: lock it, complete a checkpoint and rename it, delete old
checkpoints."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.ops.verification.verify import prepare, verify
from zerotools.runs import checkpoint_dirs
from zerotools.runs.job_record import JobRecord
from zerotools.runs.manifest import write_manifest
from zerotools.runs.upload_records import FETCHED
from zerotoolsd.supervisor.transient_errors import is_transient
from zerotoolsd.trainer.checkpoints.retention import KeepPolicy
from zerotoolsd.trainer.rank.rank_errors import MachineNotReady


@dataclass(frozen=True)
class Committed:
    """A checkpoint that has its final name, with its size in bytes. `note` is an error that
    occurred after the rename. `doubt` is the reason why the check of its structure failed."""

    path: Path
    size_bytes: int
    note: str | None = None
    doubt: str | None = None


def do_nothing(path: Path) -> None:
    """Do nothing: the default of `before_commit`."""


@dataclass(frozen=True)
class Committer:
    """Commits checkpoints to `output_dir`. Only rank 0 uses it.

    `add_files` copies the config and the tokenizer into a staging directory. `before_commit` is
    called when all files but the manifest are written. `say` prints once for each old checkpoint
    that is kept for another job.
    """

    output_dir: Path
    keeping: KeepPolicy
    add_files: Callable[[Path], None]
    before_commit: Callable[[Path], None] = do_nothing
    say: Callable[[str], None] = print
    told: set[Path] = field(default_factory=set)

    def make_staging(self, step: int) -> Path:
        """Make the staging directory for the checkpoint of `step`. Raises OSError."""
        name = f"{checkpoint_dirs.STAGING_PREFIX}{step}-{secrets.token_hex(4)}"
        staging = self.output_dir / name
        staging.mkdir(parents=True)
        return staging

    def commit(self, staging: Path, record: JobRecord) -> Committed:
        """Add record and manifest to `staging`, in which all ranks have written, and rename it.
        Raises OSError."""
        checkpoint_dirs.write_record(staging, record)
        self.add_files(staging)
        self.before_commit(staging)
        for file in _files(staging):
            sync_file(file)
        write_manifest(staging, stamps=True)
        for directory in (*_directories(staging), staging):
            checkpoint_dirs.sync_directory(directory)
        size = sum(file.stat().st_size for file in _files(staging))
        path = self.output_dir / checkpoint_dirs.directory_name(record.step)
        if path.exists():  # only one that did not verify: a whole one would have been resumed from
            _discard(path)
        staging.rename(path)
        checkpoint_dirs.sync_directory(self.output_dir)
        doubt = structure_error(path)
        return Committed(path, size, self.tidy(path) if doubt is None else None, doubt)

    def tidy(self, newest: Path) -> str | None:
        """Update the hints `latest` and `best`, and delete old checkpoints. Returns an error, or
        None. The checkpoint `newest` is kept."""
        try:
            checkpoint_dirs.write_latest(self.output_dir, newest.name)
            shutil.rmtree(self.output_dir / FETCHED, ignore_errors=True)  # the run has its own now
            self._point_at_best(newest)
            for path in self.keeping.to_delete(self.output_dir, newest):
                need = self.keeping.needed_by_others(path)
                if need is None:
                    _discard(path)
                elif path not in self.told:
                    self.told.add(path)
                    self.say(need.sentence(path))
        except OSError as error:
            return f"{error.filename or self.output_dir}: {error.strerror}"
        return None

    def _point_at_best(self, newest: Path) -> None:
        best = self.keeping.best_of(self.output_dir, newest)
        if best is not None and best != checkpoint_dirs.hinted(
            self.output_dir, checkpoint_dirs.BEST
        ):
            checkpoint_dirs.write_hint(self.output_dir, checkpoint_dirs.BEST, best.name)


def clear_leftovers(output_dir: Path) -> None:
    """Delete staging and trash directories of attempts that were killed."""
    if not output_dir.is_dir():
        return
    for path in list(output_dir.iterdir()):
        if path.name.startswith((checkpoint_dirs.STAGING_PREFIX, checkpoint_dirs.TRASH_PREFIX)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def sync_file(path: Path) -> None:
    """Flush a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    trash = path.with_name(f"{checkpoint_dirs.TRASH_PREFIX}{path.name}-{secrets.token_hex(4)}")
    path.rename(trash)
    shutil.rmtree(trash)


def _directories(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_dir())


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def check_structure(directory: Path) -> None:
    """Check a checkpoint by its metadata, as `zerotools verify --fast`: every tensor is complete,
    every chunk is inside its file, and the files of all ranks belong to one save.

    Raises:
        BadFile: something is missing, or does not fit.
    """
    try:
        found = verify(prepare(directory), fast=True)
    except ZerotoolsError as error:
        raise BadFile(str(error)) from None
    if found.findings:
        raise BadFile(found.findings[0].message)


def structure_error(directory: Path) -> str | None:
    """Return why `check_structure` refuses the checkpoint in `directory`; None if it accepts it."""
    try:
        check_structure(directory)
    except Exception as error:  # an error of this check must not end the run
        return str(error) or type(error).__name__
    return None


LOCK = ".lock"


class OutputDirInUse(RuntimeError):
    """Another process writes to the output directory. It may end soon."""


def lock_output_dir(output_dir: Path, stack: ExitStack) -> None:
    """Make `output_dir` and lock it. The lock is released when `stack` closes or this process ends.

    Raises:
        BadRequest: it cannot be made or written to.
        MachineNotReady: the disk or the file server gives errors that pass.
        InUse: another run holds it.
    """
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(output_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if is_transient(error):
            raise MachineNotReady(f"output_dir {output_dir}: {error.strerror}") from None
        raise BadRequest(f"output_dir {output_dir} cannot be written: {error.strerror}") from None
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputDirInUse(f"another run is writing to {output_dir}") from None
