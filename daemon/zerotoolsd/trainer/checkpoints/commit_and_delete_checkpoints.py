"""The actions in `output_dir` that only rank 0 does: lock the directory, complete and rename a
checkpoint, delete old checkpoints.
"""

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
from zerotools.io.files.exclusive_directory import lock_file
from zerotools.io.files.open_files import sync_directory
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify
from zerotools.runs import find_job_checkpoints
from zerotools.runs.manifest import write_manifest
from zerotools.runs.training_record import JobRecord
from zerotools.runs.upload_records import FETCHED
from zerotoolsd.supervisor.transient_os_errors import is_transient
from zerotoolsd.trainer.checkpoints.choose_checkpoints_to_keep import (
    KeepPolicy,
    add_late_evaluation,
)
from zerotoolsd.trainer.rank.rank_errors import MachineNotReady


@dataclass(frozen=True)
class Committed:
    """A checkpoint at its final `path`, with its size in bytes.

    `note` is the message of an error that occurred after the rename, for example while old
    checkpoints were deleted. `doubt` is the error that `check_structure` found. Each of them is
    None if no such error occurred.
    """

    path: Path
    size_bytes: int
    note: str | None = None
    doubt: str | None = None


def do_nothing(path: Path) -> None:
    """Do nothing. This is the default of `Committer.before_commit`."""


@dataclass(frozen=True)
class Committer:
    """Completes checkpoints, renames them to their final names in `output_dir`, and deletes old
    checkpoints. Only rank 0 uses it.

    Args:
        keeping: decides which checkpoints are kept.
        add_files: copies the config and the tokenizer of the model into a staging directory.
        before_commit: called with this directory when all its files except the manifest are
            written.
        log_line: prints one line for each old checkpoint that is kept because another job needs
            it.
    """

    output_dir: Path
    keeping: KeepPolicy
    add_files: Callable[[Path], None]
    before_commit: Callable[[Path], None] = do_nothing
    log_line: Callable[[str], None] = print
    reported: set[Path] = field(default_factory=set)
    _best: list[Path] = field(default_factory=list, init=False)  # at most one: the best so far

    def make_staging(self, step: int) -> Path:
        """Make a staging directory for the checkpoint of step `step`, and return its path.

        Raises OSError.
        """
        name = f"{find_job_checkpoints.STAGING_PREFIX}{step}-{secrets.token_hex(4)}"
        staging = self.output_dir / name
        staging.mkdir(parents=True)
        return staging

    def commit(self, staging: Path, record: JobRecord) -> Committed:
        """Add the record and the manifest to `staging`, and rename this directory to its final
        name. Then check its structure, and `tidy` the output directory.

        Before this call, all ranks have written their files into `staging`. Raises OSError.
        """
        find_job_checkpoints.write_record(staging, record)
        self.add_files(staging)
        self.before_commit(staging)
        for file in _files(staging):
            sync_file(file)
        write_manifest(staging, stamps=True)
        for directory in (*_directories(staging), staging):
            sync_directory(directory)
        size = sum(file.stat().st_size for file in _files(staging))
        path = self.output_dir / find_job_checkpoints.directory_name(record.step)
        if path.exists():  # only one that did not verify: a whole one would have been resumed from
            _discard(path)
        staging.rename(path)
        sync_directory(self.output_dir)
        doubt = structure_error(path)
        return Committed(path, size, self.tidy(path) if doubt is None else None, doubt)

    def tidy(self, newest: Path) -> str | None:
        """Update the hint files `latest` and `best`, and delete old checkpoints, but not `newest`.

        Returns the message of an error; None if there was no error.
        """
        try:
            find_job_checkpoints.write_latest(self.output_dir, newest.name)
            shutil.rmtree(self.output_dir / FETCHED, ignore_errors=True)  # the run has its own now
            self._point_at_best(newest)
            for path in self.keeping.to_delete(self.output_dir, newest):
                need = self.keeping.needed_by_others(path)
                if need is None:
                    _discard(path)
                elif path not in self.reported:
                    self.reported.add(path)
                    self.log_line(need.sentence(path))
        except OSError as error:
            return f"{error.filename or self.output_dir}: {error.strerror}"
        return None

    def add_evaluation(self, step: int, loss: float) -> None:
        """Record the evaluation loss of the checkpoint of `step`, which was saved before its
        evaluation, and update the hint file `best`. Raises OSError.
        """
        path = self.output_dir / find_job_checkpoints.directory_name(step)
        add_late_evaluation(self.output_dir, path, loss)
        self._point_at_best(path)

    def _point_at_best(self, newest: Path) -> None:
        # The hint is no help: an earlier attempt may have compared another metric.
        before = self._best[0] if self._best else None
        best = self.keeping.best_of(self.output_dir, newest, before)
        self._best[:] = [] if best is None else [best]
        if best is not None and best != find_job_checkpoints.hinted_checkpoint(
            self.output_dir, find_job_checkpoints.BEST
        ):
            find_job_checkpoints.write_hint(self.output_dir, find_job_checkpoints.BEST, best.name)


def clear_leftovers(output_dir: Path) -> None:
    """Delete the staging and trash directories that killed attempts left in `output_dir`."""
    if not output_dir.is_dir():
        return
    for path in list(output_dir.iterdir()):
        if path.name.startswith(
            (find_job_checkpoints.STAGING_PREFIX, find_job_checkpoints.TRASH_PREFIX)
        ):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def sync_file(path: Path) -> None:
    """Flush the file `path` to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    trash = path.with_name(f"{find_job_checkpoints.TRASH_PREFIX}{path.name}-{secrets.token_hex(4)}")
    path.rename(trash)
    shutil.rmtree(trash)


def _directories(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_dir())


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def check_structure(directory: Path) -> None:
    """Check the metadata of the checkpoint in `directory`, as `zerotools verify --fast` does.

    Every tensor must be complete, every chunk must be inside its file, and the files of all ranks
    must belong to one save.

    Raises:
        BadFile: one of these conditions is not met, or a file is missing.
    """
    try:
        found = carry_out_verify(prepare_verify(directory), fast=True)
    except ZerotoolsError as error:
        raise BadFile(str(error)) from None
    if found.findings:
        raise BadFile(found.findings[0].message)


def structure_error(directory: Path) -> str | None:
    """Return the error of `check_structure` for the checkpoint in `directory`; None if the metadata
    is correct.
    """
    try:
        check_structure(directory)
    except Exception as error:  # an error of this check must not end the run
        return str(error) or type(error).__name__
    return None


LOCK = ".lock"


class OutputDirInUse(RuntimeError):
    """Another process holds the lock of the output directory. That process may end soon."""


def lock_output_dir(output_dir: Path, stack: ExitStack) -> None:
    """Make `output_dir` and lock it.

    The lock is released when `stack` closes or this process ends.

    Raises:
        BadRequest: the directory cannot be made or written to.
        MachineNotReady: the disk or the file server has a transient error.
        OutputDirInUse: another run holds the lock.
    """
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(output_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        stack.callback(os.close, descriptor)
        lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, output_dir / LOCK)
    except BlockingIOError:
        raise OutputDirInUse(f"another run is writing to {output_dir}") from None
    except OSError as error:
        if is_transient(error):
            raise MachineNotReady(f"output_dir {output_dir}: {error.strerror}") from None
        raise BadRequest(f"output_dir {output_dir} cannot be written: {error.strerror}") from None
