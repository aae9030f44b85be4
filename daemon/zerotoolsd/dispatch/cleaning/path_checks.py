"""The cleaner's file accesses, in a child process: paths of users, and their links, may be on a
file system that never responds. Arguments are pickled, results are JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zerotoolsd.dispatch.cleaning import removal
from zerotoolsd.dispatch.cleaning.removal import Mention, RemovableFiles, Stays
from zerotoolsd.queue.rows import AttemptRow, JobRow


def removable_files(jobs_dir: str, job: JobRow, attempts: Sequence[AttemptRow]) -> dict[str, Any]:
    """Return `removal.files_of`, for `files_in`. Raises OSError."""
    try:
        files = removal.files_of(Path(jobs_dir), job, attempts)
    except Stays as why:
        return {"stays": str(why)}
    return {
        **asdict(files),
        "own": str(files.own),
        "logs": list(map(str, files.logs)),
        "outputs": list(map(str, files.outputs)),
    }


def files_in(answer: Mapping[str, Any]) -> RemovableFiles:
    """Return the result of `removable_files` as an object. Raises Stays."""
    if "stays" in answer:
        raise Stays(answer["stays"])
    return RemovableFiles(
        own=Path(answer["own"]),
        places=tuple(answer["places"]),
        output_places=tuple(answer["output_places"]),
        logs=tuple(map(Path, answer["logs"])),
        outputs=tuple(map(Path, answer["outputs"])),
        size_bytes=answer["size_bytes"],
        outputs_bytes=answer["outputs_bytes"],
    )


def mentioned_paths(spec_text: str, output_dir: str) -> list[dict[str, str]]:
    """Return `removal.mentions`, for `mentions_in`."""
    return [asdict(mention) for mention in removal.mentions(spec_text, output_dir)]


def mentions_in(answer: Sequence[Mapping[str, str]]) -> list[Mention]:
    """Return the result of `mentioned_paths` as objects."""
    return [Mention(**each) for each in answer]


def remove_files(files: RemovableFiles, outputs: bool) -> None:
    """Call `removal.remove`. Raises OSError."""
    removal.remove(files, outputs=outputs)


CLEANING_LOOKS = (removable_files, mentioned_paths, remove_files)
