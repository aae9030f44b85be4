"""Files next to the tensors that each rank writes one of: those of a rank may be lost.

A run that resumes continues without them, with other random numbers on these ranks, and at most
reports it in a log. Their number is in their names, or is the number of ranks; else only a gap
shows.

Source: transformers' Trainer (`rng_state_R.pth`), accelerate (`random_states_R.pkl`), verl
(`extra_state_world_size_N_rank_R.pt`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from zerotools.core.checkpoint import Problem

_OF_RANK = re.compile(
    r"(?P<stem>rng_state_|random_states_|extra_state_world_size_(?P<size>\d{1,6})_rank_)"
    r"(?P<rank>\d{1,6})(?P<end>\.pth|\.pkl|\.pt)"
)
_MOST_NAMED = 8


def lost_rank_sidecars(
    base: object, names: Iterable[str], world_size: int | None
) -> Iterator[Problem]:
    """Yield problems for ranks without a file if another of the `world_size` ranks has one. `names`
    are the files of a checkpoint, relative to `base`."""
    ranks: dict[tuple[str, str], set[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for name in names:
        path = PurePosixPath(name)
        if match := _OF_RANK.fullmatch(path.name):
            family = (path.with_name(match["stem"]).as_posix(), match["end"])
            ranks.setdefault(family, set()).add(int(match["rank"]))
            sizes[family] = int(match["size"] or world_size or 0)
    for (stem, end), there in ranks.items():
        size = max(sizes[stem, end], max(there) + 1)
        lost = [rank for rank in range(size) if rank not in there][:_MOST_NAMED]
        for rank in lost:
            file = f"{stem}{rank}{end}"
            yield Problem(f"{base}/{file} is missing; the run had {size} ranks", file)
