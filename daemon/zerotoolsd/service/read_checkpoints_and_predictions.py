"""Reads the checkpoints and predictions in the directories of jobs, in a child process that runs as
the job's user.

The sizes of files are compared with the manifest; their contents are not read. The scan of a
directory with very many files is limited to a few seconds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.jobs.jobfile_tables.eval import PREDICTIONS
from zerotools.runs import find_job_checkpoints
from zerotools.runs.job_checkpoint_file_names import MANIFEST
from zerotools.runs.manifest import read_manifest, verify_manifest
from zerotools.runs.thinning_record import is_thinned, read_thinned
from zerotoolsd.supervisor.durable_files import open_regular

LONGEST_TEXT = 4000
LONGEST_LINE = 1 << 20
TEXTS = ("prompt", "reference", "prediction")
_SUFFIX = ".jsonl"


def prediction_rows(output_dir: str, step: int | None, first: int, count: int) -> dict[str, Any]:
    """Return generated texts of an evaluation: `{"steps", "step", "first", "rows", "more"}`.

    `steps` are all steps with predictions. `rows` are `count` rows of `step` (None: the newest
    step), from number `first` on. `more` is True if there are further rows. Raises OSError.
    """
    steps = _steps(Path(output_dir) / PREDICTIONS)
    chosen = max(steps, default=None) if step is None else step
    rows: list[dict[str, Any]] = []
    more = False
    if chosen in steps:
        path = (
            Path(output_dir)
            / PREDICTIONS
            / f"{find_job_checkpoints.directory_name(chosen)}{_SUFFIX}"
        )
        found = list(islice(_rows(path), first, first + count + 1))
        rows, more = found[:count], len(found) > count
    return {"steps": sorted(steps), "step": chosen, "first": first, "rows": rows, "more": more}


def _steps(directory: Path) -> set[int]:
    try:
        names = os.listdir(directory)  # noqa: PTH208  # names alone are needed
    except (FileNotFoundError, NotADirectoryError):
        return set()
    found = (
        find_job_checkpoints.step_of(name.removesuffix(_SUFFIX))
        for name in names
        if name.endswith(_SUFFIX)
    )
    return {step for step in found if step is not None}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the file `path`, with texts cut to `LONGEST_TEXT` characters."""
    try:
        descriptor = open_regular(path)
    except (ValueError, FileNotFoundError):  # a link or a pipe, or removed since
        return
    with os.fdopen(descriptor, "rb") as file:
        while line := file.readline(LONGEST_LINE):
            try:
                tree = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(tree, dict):
                texts = {name: _text(tree.get(name)) for name in TEXTS}
                number = tree.get("example")
                yield {"example": number if type(number) is int else None, **texts}


def _text(value: object) -> str | None:
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


MOST = 200
MOST_FILES = 50
"""At most this many files of one checkpoint are listed, the largest first."""
SECONDS = 3.0
SIZES = "sizes"


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint in a job's directory.

    Attributes:
        hints: the names `latest` and `best`, if these refer to the checkpoint.
        saved: the time when its manifest was written, in seconds since 1970.
        checked: "sizes" if all files have the right sizes; None if the sizes were not checked, or
            if there is a `problem`.
    """

    step: int
    path: str
    hints: tuple[str, ...]
    saved: float | None
    size_bytes: int
    file_count: int
    files: tuple[tuple[str, int], ...] = ()
    world_size: int | None = None
    stage: int | None = None
    thinned: bool = False
    checked: str | None = None
    problem: str | None = None


def checkpoint_tree(output_dir: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the checkpoints of a job: `{"checkpoints", "more", "unfinished"}`.

    `checkpoints` are at most `MOST` checkpoints, the newest first. `more` is the number of further
    checkpoints, and `unfinished` are the names of incomplete saves. Raises OSError.
    """
    root, until = Path(output_dir), time.monotonic() + seconds
    listed = find_job_checkpoints.list_checkpoints(root)
    hints = {
        hint: found
        for hint in (find_job_checkpoints.LATEST, find_job_checkpoints.BEST)
        if (found := find_job_checkpoints.hinted_checkpoint(root, hint)) is not None
    }
    saved = [
        asdict(_read_checkpoint(path, tuple(hint for hint in hints if hints[hint] == path), until))
        for path in listed[:MOST]
    ]
    return {
        "output_dir": output_dir,
        "checkpoints": saved,
        "more": max(0, len(listed) - MOST),
        "unfinished": sorted(_unfinished(root))[:MOST],
    }


def _unfinished(root: Path) -> Iterator[str]:
    if root.is_dir():
        for path in root.iterdir():
            name = path.name.removeprefix(find_job_checkpoints.STAGING_PREFIX)
            if name != path.name and find_job_checkpoints.step_of(name) is not None:
                yield path.name


def _read_checkpoint(
    path: Path, hints: tuple[str, ...], until: float, clock: Callable[[], float] = time.monotonic
) -> SavedCheckpoint:
    step = find_job_checkpoints.step_of(path.name) or 0
    try:
        sizes = {name: entry.size for name, entry in read_manifest(path).items()}
        saved = (path / MANIFEST).stat().st_mtime
    except (BadFile, OSError) as error:
        return SavedCheckpoint(
            step=step,
            path=str(path),
            hints=hints,
            saved=None,
            size_bytes=0,
            file_count=0,
            problem=str(error),
        )
    largest = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))[:MOST_FILES]
    checked = problem = world_size = stage = None
    if clock() < until:
        found = verify_manifest(path, digests=False)
        problem = found[0].message if found else None
        checked = None if found else SIZES
        try:
            record = find_job_checkpoints.read_record(path)
            world_size, stage = record.world_size, record.stage
        except (BadFile, OSError) as error:
            checked, problem = None, problem or str(error)
    return SavedCheckpoint(
        step=step,
        path=str(path),
        hints=hints,
        saved=saved,
        size_bytes=sum(sizes.values()),
        file_count=len(sizes),
        files=tuple(largest),
        world_size=world_size,
        stage=stage,
        thinned=is_thinned(path),
        checked=checked,
        problem=problem,
    )


def thinned_sentence(path: str) -> str | None:
    """Return a sentence on the tensors that were dropped from the checkpoint at `path`.

    Return None if the checkpoint has no readable record of thinning. Blocks while a file system
    does not respond.
    """
    try:
        found = read_thinned(Path(path))
    except (BadFile, OSError, ValueError):
        return None
    return None if found is None else found.sentence()


def checkpoint_picture(output_dir: str, step: int) -> str:
    """Return the page that draws the checkpoint of a step, as `inspect --html` writes it. No tensor
    data is read. Raises BadFile, BadRequest, Unsupported and OSError.
    """
    from zerotools.public.inspect_checkpoint import inspect

    return inspect(Path(output_dir) / find_job_checkpoints.directory_name(step)).to_html()


RESULT_LOOKS = (checkpoint_tree, prediction_rows, thinned_sentence, checkpoint_picture)
