"""The directories of a job's checkpoints: their names, the checkpoint to resume from, and the files
`latest` and `best`.

    <output_dir>/step-00000040/dcp/{.metadata,__R_0.distcp}   tensors, torch DCP
                              /job.json                       `training_record`
                              /rank_00000.json ...            random number state of each rank
                              /config.json [, tokenizer]      Hugging Face
                              /MANIFEST.json                  size and digest of all of the above
    <output_dir>/latest, best                                 text: a directory name; a hint only

A directory gets its final name by one rename, when all of its files are on the disk. So the
checkpoint to resume from is found by listing the directories, newest first, and checking the
manifest. `latest` is for people, and for programs that rely on it. Standard library only, because
the training process imports this module too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.exclusive_directory import new_text_file
from zerotools.io.files.open_files import sync_directory
from zerotools.io.files.regular_files import read_regular
from zerotools.runs.job_checkpoint_file_names import DCP
from zerotools.runs.manifest import stamps_prove_unchanged, verify_manifest
from zerotools.runs.thinning_record import is_thinned
from zerotools.runs.training_record import (
    RECORD,
    RNG_PER_RANK,
    JobRecord,
    read_record,
    write_record,
)

LATEST = "latest"
BEST = "best"
STAGING_PREFIX = ".tmp-"
TRASH_PREFIX = ".trash-"
_LARGEST_HINT = 4096
SIZES, DIGESTS, UNCHANGED = "sizes", "digests", "unchanged"
"""How the files of a checkpoint were checked: by their sizes, by their digests, or by their
stamps.

`UNCHANGED`: their digests were computed when they were saved, since the last boot of this machine,
and no file was written since then.
"""
_NAME = re.compile(r"step-(\d{8,})")

__all__ = [
    "BEST",
    "DCP",
    "DIGESTS",
    "LATEST",
    "RECORD",
    "SIZES",
    "STAGING_PREFIX",
    "TRASH_PREFIX",
    "UNCHANGED",
    "JobRecord",
    "ResumeChoice",
    "SkippedCheckpoint",
    "check_and_explain",
    "directory_name",
    "hinted_checkpoint",
    "latest_by_hint",
    "list_checkpoints",
    "newest_valid",
    "read_record",
    "resolve_hint",
    "resolve_resume_from",
    "rng_name",
    "step_of",
    "verify_checkpoint_files",
    "write_hint",
    "write_latest",
    "write_record",
]


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """A checkpoint that a job does not resume from; `why` is one sentence that names the file."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class ResumeChoice:
    """The checkpoint to resume from (None if no checkpoint can be used), and the newer checkpoints
    that were skipped.

    `how` says how its files were checked: `SIZES`, `DIGESTS` or `UNCHANGED`.
    """

    path: Path | None
    record: JobRecord | None
    skipped: tuple[SkippedCheckpoint, ...] = ()
    how: str | None = None


def directory_name(step: int) -> str:
    """Return the name of the directory for the checkpoint after training step `step`, such as
    `step-00000040`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint directory's name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def rng_name(rank: int) -> str:
    """Return the name of the file with the random number state of this rank."""
    return f"rank_{rank:05d}.json"


def list_checkpoints(output_dir: Path) -> list[Path]:
    """Return the paths of the checkpoint directories in `output_dir`, newest first. No directory
    is opened.

    Return an empty list if `output_dir` does not exist.
    """
    try:
        found = [(step_of(path.name), path) for path in output_dir.iterdir()]
    except FileNotFoundError:
        return []
    steps = [(step, path) for step, path in found if step is not None and path.is_dir()]
    return [path for _, path in sorted(steps, reverse=True)]


def verify_checkpoint_files(directory: Path, *, digests: bool = True) -> JobRecord:
    """Check that every file of a checkpoint agrees with its manifest, and that no random number
    state is missing. Return the checkpoint's job record. If `digests` is False, only sizes are
    compared.

    Raises:
        BadFile: something is missing, damaged or truncated; the message names the file.
    """
    problems = verify_manifest(directory, digests=digests)
    if problems:
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise BadFile(f"{problems[0].message}{more}")
    record = read_record(directory)
    if record.rng == RNG_PER_RANK:
        missing = [
            rng_name(rank)
            for rank in range(record.world_size)
            if not (directory / rng_name(rank)).is_file()
        ]
        if missing:
            raise BadFile(
                f"{directory / missing[0]} is missing, but {RECORD} lists the random number state "
                f"of {count_text(record.world_size, 'rank')}; copy or download the file again"
            )
    return record


def _nothing(_: Path) -> None:
    return None


def check_and_explain(
    directory: Path,
    *,
    digests: bool = True,
    trusting: bool = False,
    structure: Callable[[Path], None] = _nothing,
) -> tuple[JobRecord, str]:
    """Check every file of a checkpoint like `verify_checkpoint_files`. Return its job record, and
    how the files were checked (`SIZES`, `DIGESTS` or `UNCHANGED`).

    With `trusting`, files that were not written since their digests were computed are not read
    again. `structure` is a function that raises an error if tensors in the files are incomplete.

    Raises:
        BadFile: for the reasons of `verify_checkpoint_files`, or raised by `structure`.
    """
    trusted = digests and trusting and stamps_prove_unchanged(directory)
    record = verify_checkpoint_files(directory, digests=digests and not trusted)
    structure(directory)
    return record, UNCHANGED if trusted else DIGESTS if digests else SIZES


def newest_valid(
    output_dir: Path,
    *,
    above: int = -1,
    digests: bool = True,
    trusting: bool = False,
    structure: Callable[[Path], None] = _nothing,
    thinned: bool = False,
) -> ResumeChoice:
    """Return the newest checkpoint below `output_dir` that passes the check and is from a training
    step after `above`.

    A thinned checkpoint is skipped unless `thinned` is True. With `digests=False` only file sizes
    are compared, and no tensor is read. `trusting` and `structure` have the same meaning as in
    `check_and_explain`.
    """
    skipped: list[SkippedCheckpoint] = []
    for path in list_checkpoints(output_dir):
        step = step_of(path.name)
        if step is None or step <= above:
            break
        try:
            record, how = check_and_explain(
                path, digests=digests, trusting=trusting, structure=structure
            )
            if record.step != step:
                raise BadFile(
                    f"{path / RECORD} is of step {record.step}, but its directory is of step "
                    f"{step}; take another checkpoint"
                )
            if is_thinned(path) and not thinned:
                raise BadFile(
                    f"{path} was thinned and holds only the weights; take another checkpoint"
                )
            return ResumeChoice(path, record, tuple(skipped), how)
        except BadFile as error:
            skipped.append(SkippedCheckpoint(path, str(error)))
    return ResumeChoice(None, None, tuple(skipped))


def resolve_hint(path: Path) -> Path:
    """Return the checkpoint directory that the file `path` names, if `path` is a hint (`best` or
    `latest`); else return `path`.
    """
    if path.name in (LATEST, BEST) and path.is_file():
        return hinted_checkpoint(path.parent, path.name) or path
    return path


def resolve_resume_from(
    path: Path,
    *,
    digests: bool = True,
    trusting: bool = False,
    structure: Callable[[Path], None] = _nothing,
) -> ResumeChoice:
    """Return the checkpoint that `resume_from = path` in a job file means: `path` itself, or the
    newest valid checkpoint below it.

    If `path` is the file `best` or `latest` of an output directory, the file names the checkpoint.

    Raises:
        BadRequest: `path` does not exist, or is neither a checkpoint nor a directory of
            checkpoints.
        BadFile: the checkpoint is damaged, or all checkpoints below `path` are damaged.
    """
    path = resolve_hint(path)
    if not path.is_dir():
        raise BadRequest(
            f"resume_from: {path} is not a directory; name the directory of a checkpoint"
        )
    if (path / RECORD).exists() or (path / DCP).is_dir():
        record, how = check_and_explain(
            path, digests=digests, trusting=trusting, structure=structure
        )
        return ResumeChoice(path, record, how=how)
    if not list_checkpoints(path):
        raise BadRequest(
            f"resume_from: {path} is not a checkpoint: it has no {RECORD} (a checkpoint of a job), "
            "no step-… (a directory of such checkpoints), and no files of another program that "
            "zerotools reads; name another directory"
        )
    choice = newest_valid(path, digests=digests, trusting=trusting, structure=structure)
    if choice.path is None:
        raise BadFile(
            f"no checkpoint in {path} is complete; the newest has this fault: "
            f"{choice.skipped[0].why}"
        )
    return choice


def hinted_checkpoint(output_dir: Path, hint: str) -> Path | None:
    """Return the checkpoint directory that a hint file (`latest` or `best`) names, or None if this
    directory does not exist.
    """
    try:
        name = read_regular(output_dir / hint, _LARGEST_HINT, is_source=False).decode().strip()
    except (OSError, UnicodeDecodeError, BadFile):  # none yet, or something of the user's
        return None
    if step_of(name) is None or not (output_dir / name).is_dir():
        return None
    return output_dir / name


def latest_by_hint(output_dir: Path) -> Path | None:
    """Return the checkpoint directory that the file `latest` names, or None if this directory does
    not exist.
    """
    return hinted_checkpoint(output_dir, LATEST)


def write_hint(output_dir: Path, hint: str, name: str) -> None:
    """Write `name`, the name of a directory or another line, into a hint file, such as `latest`.
    The file is replaced by a rename after it is flushed to the disk.
    """
    draft = output_dir / f"{STAGING_PREFIX}{hint}"
    with new_text_file(draft) as file:
        file.write(name + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(output_dir / hint)
    sync_directory(output_dir)


def write_latest(output_dir: Path, name: str) -> None:
    """Write the directory name `name` into the file `latest`. The file is replaced by a rename
    after it is flushed to the disk.
    """
    write_hint(output_dir, LATEST, name)
