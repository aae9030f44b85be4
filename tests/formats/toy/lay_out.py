"""Lay a checkpoint out as toy: each rank has a block of rows of every tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.formats.toy.file_names import METADATA, rank_file
from tests.formats.toy.read import VERSION
from tests.formats.toy.training_state import state_of
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.target import FilePlan, Target
from zerotools.core.training_state import TrainingState
from zerotools.io.output.files_without_tensors import file_of_bytes, sidecar_files


def lay_out(
    source: Checkpoint, training: TrainingState, destination: Path, world_size: int
) -> Target:
    """Plan the files of `world_size` ranks. Numbers of the optimizer are in toy.json.

    Raises:
        Unsupported: an option of the optimizer is an object of a class.
    """
    state, dropped = state_of(training)
    ranks = _RankFiles(world_size)
    tensors = {
        key: Tensor(tensor.dtype, tensor.shape, list(ranks.add(tensor)))
        for key, tensor in source.tensors.items()
        if key not in training.scalars
    }
    document = {
        "toy": VERSION,
        "world_size": world_size,
        "tensors": [_entry(key, tensor) for key, tensor in tensors.items()],
        "aliases": dict(source.aliases),
        **state,
    }
    files = {
        METADATA: file_of_bytes(json.dumps(document, indent=1).encode()),
        **{rank_file(rank): FilePlan(size) for rank, size in enumerate(ranks.sizes)},
        **sidecar_files(source),
    }
    checkpoint = Checkpoint(
        destination,
        tensors,
        Origin("toy", destination, world_size=world_size, step=training.steps),
        aliases=source.aliases,
        files={name: plan.size for name, plan in files.items()},
    )
    return Target(checkpoint, files, dropped=dropped)


@dataclass
class _RankFiles:
    """The files of the ranks, as far as they are filled."""

    world_size: int
    sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = [0] * self.world_size

    def add(self, tensor: Tensor) -> Iterator[Chunk]:
        """The blocks of `tensor`, behind what each rank has already."""
        for rank, box in enumerate(blocks(tensor.shape, self.world_size)):
            if not box.is_empty:
                yield Chunk(box, rank_file(rank), self.sizes[rank])
                self.sizes[rank] += box.numel * tensor.dtype.itemsize


def blocks(shape: tuple[int, ...], world_size: int) -> list[Box]:
    """The rows of each rank, of a tensor of no dimension all for the first."""
    if not shape:
        return [Box.whole(shape)]
    rows, *rest = shape
    cuts = [rows * rank // world_size for rank in range(world_size + 1)]
    zeros = (0,) * len(rest)
    return [Box((begin, *zeros), (end - begin, *rest)) for begin, end in pairwise(cuts)]


def _entry(key: Key, tensor: Tensor) -> dict[str, Any]:
    return {
        **key._asdict(),
        "dtype": tensor.dtype.name,
        "shape": tensor.shape,
        "blocks": [
            {
                "file": chunk.file,
                "offset": chunk.offset,
                "start": chunk.box.start,
                "shape": chunk.box.shape,
            }
            for chunk in tensor.chunks
        ],
    }
