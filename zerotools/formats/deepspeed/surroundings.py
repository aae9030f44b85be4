"""The files of a save directory around its tags, carried along so that the output is a drop-in."""

from __future__ import annotations

import re
from pathlib import Path

from zerotools.core.checkpoint import Carried, Checkpoint, FilePlan, Literal
from zerotools.formats.deepspeed.files import is_tag_directory
from zerotools.formats.deepspeed.find import LATEST

# Hugging Face's Trainer, accelerate: one file per rank.
_RANDOM = re.compile(r"rng_state(_\d+)?\.pth|random_states_\d+\.pkl")


def around(source: Checkpoint, *, same_ranks: bool) -> tuple[dict[str, FilePlan], tuple[str, ...]]:
    """The files beside the tag's directory, with `latest` naming it, and what to say of them.

    The state of random number generators belongs to ranks, and is left out where those change.
    """
    directory, tag = source.root.parent, source.root.name
    plans, random, left = {}, [], []
    for path in sorted(directory.iterdir() if _is_save_directory(source) else ()):
        if path.name in LATEST:
            continue
        if _RANDOM.fullmatch(path.name) and not same_ranks:
            random.append(path.name)
        elif path.is_file():
            size = path.stat().st_size
            plans[path.name] = FilePlan(size, carried=[Carried(0, path, 0, size)])
        elif path != source.root and not is_tag_directory(path):
            left.append(path.name)
    notes = []
    if random:
        notes.append(
            f"{', '.join(random)} hold the random number state of single ranks and are left out: "
            "the ranks seed themselves afresh"
        )
    if left:
        notes.append(f"directories beside the tag are left out: {', '.join(left)}")
    plans[LATEST[0]] = FilePlan(len(tag.encode()), [Literal(0, tag.encode())])
    return plans, tuple(notes)


def _is_save_directory(source: Checkpoint) -> bool:
    """Whether the tag lies in a directory of its own run: it was given, or has a `latest`."""
    directory = source.root.parent
    given: Path = source.origin.path
    return given != source.root or any((directory / name).is_file() for name in LATEST)
