"""If the user requests it, compare tensors with their copies in files that are normally not read.

- At stage 3, the model file of every rank has the buffers, and normally only the first rank's
  buffers are read. The same is true of single numbers in the optimizer state, such as `step`.
- In a pipeline, a tied layer is in the flat buffers of every stage that uses it, partitioned
  differently. Normally only the first stage's copy is read.

Copies on tensor-parallel ranks are not compared here, because they are chunks of one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import Range, covering_ranges, match_ranges
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.kept_for_writer import files_of_all_ranks, native_of
from zerotools.formats.deepspeed.reading.check_same_save import misnamed_files
from zerotools.formats.deepspeed.schema.model_states import parse_model
from zerotools.formats.deepspeed.schema.tag_file_names import is_rank_file
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor

_READ_BYTES = 2**20


class TensorPair(NamedTuple):
    """Two copies of a tensor that should be equal; their files are below the same root."""

    key: Key
    first: Tensor
    other: Tensor


def compare_copies(checkpoint: Checkpoint) -> int:
    """Compare the tensors that are read with their copies in other files. Return the number of
    bytes compared.

    Raises:
        BadFile: two copies differ, or a file is truncated.
    """
    mp_shards = native_of(checkpoint).mp_shards
    root, total = mp_shards[0].model.file.root, 0
    with OpenFiles(root) as files:
        for copies in (*_of_stages(checkpoint, mp_shards), *_of_ranks(checkpoint, mp_shards)):
            total += _compare(root, files, copies)
        for copies in _of_scalars(mp_shards):
            total += _compare(root, files, copies)
    return total


def _of_stages(checkpoint: Checkpoint, mp_shards: Sequence[MpShard]) -> Iterator[TensorPair]:
    ranks = native_of(checkpoint).tensor_ranks
    first: dict[tuple[int, Key], Tensor] = {}
    for mp_rank, mp_shard in enumerate(mp_shards):
        for key, tensor in mp_shard.tensors.items():
            known = first.setdefault((mp_rank % ranks, key), tensor)
            if known is not tensor and known.chunks is not tensor.chunks:
                yield TensorPair(key, known, tensor)


def _of_ranks(checkpoint: Checkpoint, mp_shards: Sequence[MpShard]) -> Iterator[TensorPair]:
    for mp_shard in mp_shards:
        name = mp_shard.model.file.name
        if not is_rank_file(name):
            continue
        own = {key: t for key, t in mp_shard.tensors.items() if key.role == "buffer"}
        for other in files_of_all_ranks(checkpoint, name):
            if other == name:
                continue
            model = parse_model(TorchFile.open(mp_shard.model.file.root, other))
            for problem in misnamed_files([model.file]):
                raise BadFile(problem.message)
            if model.global_steps != mp_shard.model.global_steps:
                raise BadFile(
                    f"{model.file.path} is of step {model.global_steps}, but {name} is of step "
                    f"{mp_shard.model.global_steps}: the files are from two saves; take another "
                    "checkpoint"
                )
            for key, tensor in own.items():
                stored = (model.module or {}).get(key.name)
                if stored is None or stored.shape != tensor.shape or stored.dtype != tensor.dtype:
                    raise BadFile(
                        f"{model.file.path} has no buffer {key.name} with the shape and dtype "
                        f"that it has in {name}: the files are from two saves; take another "
                        "checkpoint"
                    )
                yield TensorPair(key, tensor, model.file.tensor(stored))


def _of_scalars(mp_shards: Sequence[MpShard]) -> Iterator[TensorPair]:
    """Yield pairs of the single numbers, such as `step`, of each param group: the number of the
    first rank, and the number of another rank that shares the group.

    Raises:
        BadFile: two ranks store different values of a number that is not a tensor.
    """
    for group in (group for mp_shard in mp_shards for group in mp_shard.groups):
        present = [optim for optim in group.optim_states if optim is not None]
        for other in present[1:]:
            ours, theirs = present[0].scalars[group.number], other.scalars[group.number]
            for role in ours.keys() & theirs.keys():
                key = Key(f"group {group.number}", role)
                first, second = as_tensor(ours[role]), as_tensor(theirs[role])
                if first is not None and second is not None:
                    yield TensorPair(key, present[0].file.tensor(first), other.file.tensor(second))
                elif _is_number(ours[role]) and ours[role] != theirs[role]:
                    raise BadFile(
                        f"{other.file.path}: {key} is {theirs[role]!r:.40}, but "
                        f"{ours[role]!r:.40} in {present[0].file.path}; the files are from two "
                        "saves: take another checkpoint"
                    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _compare(root: Path, files: OpenFiles, copies: TensorPair) -> int:
    key, first, other = copies
    ranges = [covering_ranges(tensor, None) for tensor in (first, other)]
    if (first.shape, first.dtype) != (other.shape, other.dtype):
        raise BadFile(
            f"{root}: {key} is {first.dtype} of shape {first.shape} in one file, and "
            f"{other.dtype} of shape {other.shape} in another"
        )
    if ranges[0] is None or ranges[1] is None:
        return 0
    total, itemsize = 0, first.dtype.itemsize
    for place, pieces in match_ranges(ranges[0], ranges[1], itemsize):
        offset = place.offset
        for piece in pieces:
            length = (piece.end - piece.begin) * itemsize
            _equal(root, files, key, piece, place._replace(offset=offset), length)
            offset += length
            total += length
    return total


def _equal(root: Path, files: OpenFiles, key: Key, piece: Range, place: Range, length: int) -> None:
    for done in range(0, length, _READ_BYTES):
        count = min(_READ_BYTES, length - done)
        ours, theirs = bytearray(count), bytearray(count)
        files.read_into(piece.file, piece.offset + done, memoryview(ours))
        files.read_into(place.file, place.offset + done, memoryview(theirs))
        if ours != theirs:
            raise BadFile(
                f"{root / place.file}: {key} differs from its copy in {root / piece.file}, near "
                f"byte {place.offset + done}; the files are from two saves, or one is damaged: "
                "take another checkpoint"
            )
