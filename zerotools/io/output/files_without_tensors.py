"""Output files without tensors: known bytes, or the bytes of another file.

Files next to a checkpoint's shards are copied too, so that the output can replace the checkpoint. A
link to a file outside is not copied (`refused_link_target`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile
from zerotools.core.target import CarriedBytes, FilePlan, LiteralBytes
from zerotools.io.files.regular_files import refused_link_target, source_file
from zerotools.io.output.output_marker import MARKER


def file_of_bytes(data: bytes) -> FilePlan:
    """Return the plan of an output file that has the bytes `data`."""
    return FilePlan(len(data), [LiteralBytes(0, data)])


def carried_file(path: Path) -> FilePlan:
    """Return the plan of an output file that is a copy of `path`.

    A link to a file of the same name is followed, so `path` must have a usual name of a file of a
    checkpoint or a model.

    Raises:
        BadFile: `path` is not a regular file, or is a link that is not followed.
    """
    if (target := refused_link_target(path, chosen_name=False)) is not None:
        raise BadFile(
            f"{path} is a link to {target}, outside its directory, so the output would contain "
            "that file; put the file itself there if it belongs to the model, or remove the link"
        )
    with source_file(path) as source:
        size = source.status().st_size
    return FilePlan(size, carried=[CarriedBytes(0, path, 0, size)])


def sidecar_files(source: Checkpoint) -> dict[str, FilePlan]:
    """Return plans that copy config.json, the tokenizer files and similar files of a model
    unchanged.
    """
    return {name: carried_file(path) for name, path in source.model_sidecars.items()}


# Hugging Face's Trainer, accelerate: one file per rank.
RANDOM_STATE = re.compile(r"rng_state(_\d+)?\.pth|random_states_\d+\.pkl")


def run_sidecars_in(
    directory: Path, is_own: Callable[[Path], bool], *, same_ranks: bool
) -> tuple[dict[str, FilePlan], tuple[str, ...]]:
    """Return plans that copy the files in `directory` that do not belong to the checkpoint, and
    notes on files that are not copied. `is_own` returns True for a file of the checkpoint.

    A file with the state of random number generators belongs to one rank. It is copied only with
    `same_ranks`, that is, if the output has the same ranks.
    """
    plans, random, left, links = {}, [], [], []
    for path in sorted(directory.iterdir()):
        if is_own(path) or path.name == MARKER:
            continue
        if RANDOM_STATE.fullmatch(path.name) and not same_ranks:
            random.append(path.name)
        elif refused_link_target(path, chosen_name=True) is not None:
            links.append(path.name)
        elif path.is_file():
            plans[path.name] = carried_file(path)
        else:
            left.append(path.name)
    notes = []
    if random:
        notes.append(
            f"{', '.join(random)} hold the random number state of single ranks and are not copied: "
            "the ranks are seeded again"
        )
    if left:
        notes.append(f"directories next to the shards are not copied: {', '.join(left)}")
    if links:
        notes.append(
            f"links out of {directory} are not copied: {', '.join(links)}; put the files "
            "themselves there to copy them"
        )
    return plans, tuple(notes)
