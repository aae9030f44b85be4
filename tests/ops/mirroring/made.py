"""Output directories of jobs, whose checkpoints are copied."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tests.golden_files import JOB
from tests.io.stores.far import far
from zerotools.io.stores.store_path import StorePath
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.mirroring.checkpoint_mirror import Mirror
from zerotools.runs import find_job_checkpoints
from zerotools.runs.deletable_checkpoints import KeepRule
from zerotools.runs.manifest import write_manifest
from zerotools.runs.training_record import read_record, write_record

BUDGET = MemoryBudget(128 * 2**20, 2)


def save(output_dir: Path, step: int, **changes: object) -> Path:
    """The checkpoint of `step`, as a job saves it."""
    path = output_dir / find_job_checkpoints.directory_name(step)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(JOB, path)
    write_record(path, replace(read_record(path), step=step, **changes))  # type: ignore[arg-type]
    write_manifest(path)
    find_job_checkpoints.write_latest(output_dir, path.name)
    return path


def place(key: str = "run") -> StorePath:
    """Where the checkpoints of a run are copied."""
    found = far(key)
    assert isinstance(found, StorePath)
    return found


def mirror(output_dir: Path, job: str = "job 1", **rule: int) -> Mirror:
    """What copies them, of a run that has claimed the place."""
    return Mirror(output_dir, place(), job, KeepRule(**rule))


def send(output: Mirror) -> list[str]:
    """The names of what is sent now, in order."""
    sent: list[str] = []

    def failed(path: Path, why: str) -> None:
        raise AssertionError(f"{path}: {why}")

    assert output.send_all(BUDGET, lambda path, *_: sent.append(path.name), failed)
    return sent


def same(one: Path, other: Path) -> bool:
    """Whether both directories have the same files with the same bytes."""

    def contents(directory: Path) -> dict[str, bytes]:
        return {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file()
        }

    return contents(one) == contents(other)
