"""Files around a checkpoint's shards, carried along so that the output is a drop-in."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from zerotools.core.target import FilePlan
from zerotools.io.output.marker import MARKER
from zerotools.io.output.plain_files import carried_file, led_out

# Hugging Face's Trainer, accelerate: one file per rank.
RANDOM_STATE = re.compile(r"rng_state(_\d+)?\.pth|random_states_\d+\.pkl")


def run_sidecars_in(
    directory: Path, is_own: Callable[[Path], bool], *, same_ranks: bool
) -> tuple[dict[str, FilePlan], tuple[str, ...]]:
    """Return the files in `directory` that do not belong to the checkpoint, and notes on them.

    The state of random number generators belongs to ranks, and is omitted if those change.
    """
    plans, random, left, links = {}, [], [], []
    for path in sorted(directory.iterdir()):
        if is_own(path) or path.name == MARKER:
            continue
        if RANDOM_STATE.fullmatch(path.name) and not same_ranks:
            random.append(path.name)
        elif led_out(path, chosen_name=True) is not None:
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
