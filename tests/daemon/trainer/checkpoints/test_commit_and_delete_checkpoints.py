"""The structure of a job's checkpoint, before a job goes on from it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.golden_files import JOB
from zerotools.core.errors import BadFile, BadRequest
from zerotools.runs import find_job_checkpoints
from zerotools.runs.manifest import write_manifest
from zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints import (
    check_structure,
    lock_output_dir,
    structure_error,
)
from zerotoolsd.trainer.rank.rank_errors import MachineNotReady


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path: Path = shutil.copytree(JOB, tmp_path / JOB.name)
    write_manifest(path, stamps=True)
    return path


def test_a_whole_checkpoint_is_taken_and_says_how_it_was_checked(saved: Path) -> None:
    assert structure_error(saved) is None
    trusting = find_job_checkpoints.newest_valid(
        saved.parent, trusting=True, structure=check_structure
    )
    assert (trusting.path, trusting.how) == (saved, find_job_checkpoints.UNCHANGED)
    assert find_job_checkpoints.newest_valid(saved.parent).how == find_job_checkpoints.DIGESTS
    assert (
        find_job_checkpoints.newest_valid(saved.parent, digests=False).how
        == find_job_checkpoints.SIZES
    )


def test_files_with_right_digests_that_do_not_make_a_whole_are_refused(saved: Path) -> None:
    """As if a save had lost a rank's file and sealed what was left."""
    (saved / "dcp" / "__1_0.distcp").unlink()
    write_manifest(saved, stamps=True)
    assert find_job_checkpoints.newest_valid(saved.parent).path == saved
    choice = find_job_checkpoints.newest_valid(
        saved.parent, trusting=True, structure=check_structure
    )
    assert choice.path is None
    assert "__1_0.distcp" in choice.skipped[0].why
    assert structure_error(saved) == choice.skipped[0].why


def test_what_cannot_be_read_is_a_sentence(saved: Path) -> None:
    (saved / "dcp" / ".metadata").write_bytes(b"\x80\x04.")
    write_manifest(saved)
    with pytest.raises(BadFile):
        check_structure(saved)
    (saved / "job.json").write_text(json.dumps([]))
    assert structure_error(saved)


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", none)
    number = errno.ENOSYS
    with ExitStack() as stack, pytest.raises(BadRequest, match="its file system has no locks"):
        lock_output_dir(tmp_path / "out", stack)
    number = errno.ENOLCK
    with ExitStack() as stack, pytest.raises(MachineNotReady, match="has no locks"):
        lock_output_dir(tmp_path / "out", stack)
