"""The files of a checkpoint that the other checks show to be of one save, each under its right
name.

A model file records its step. An optimizer file records it if the optimizer counts steps (SGD and
Lion do not), and its rank if torch wrote it by its name. Masters also show it: they are the weights
of a model file. Files of layers and experts record neither, but hold such weights.

So at stage 3 the files of an optimizer that counts no steps may be of any save, and files that were
written to an open file (their folder is `archive`) of any rank. Without weights to compare with the
masters, two runs that saved the same step under one tag look the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.core.checkpoint import Checkpoint, Tensor
from zerotools.core.ranges import chunk_locations
from zerotools.formats.deepspeed.partitioning.mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.native import files_of_all_ranks, native_of
from zerotools.formats.deepspeed.partitioning.weight_pairs import weight_pairs
from zerotools.formats.deepspeed.reading.consistency import (
    began_before,
    says_its_name,
    step_of,
    updates_of,
)
from zerotools.formats.deepspeed.schema.file_names import is_rank_file
from zerotools.io.torchzip.pt_file import TorchFile


def files_of_one_save(source: Checkpoint) -> frozenset[str]:
    """Return the names of the files of one save, relative to `source.root`."""
    found: set[str] = set()
    for _, master, weight in weight_pairs(source):
        if master.numel:
            found |= {*_files_of(master), *_files_of(weight)}
    for mp_shard in native_of(source).mp_shards:
        found |= {*_models(source, mp_shard), *_optimizers(mp_shard)}
    return frozenset(found)


def _files_of(tensor: Tensor) -> set[str]:
    return {file for file, _ in chunk_locations(tensor)}


def _models(source: Checkpoint, mp_shard: MpShard) -> Iterator[str]:
    """Yield model files with comparable steps. At stage 3 each rank has one, with its part of the
    frozen parameters."""
    first = mp_shard.model.file
    if not is_rank_file(first.name):
        yield first.name
        return
    for name in files_of_all_ranks(source, first.name):
        if not mp_shard.model.frozen_shapes or says_its_name(TorchFile.open(first.root, name)):
            yield name


def _optimizers(mp_shard: MpShard) -> Iterator[str]:
    for optim in mp_shard.optim_states:
        if optim is None or not says_its_name(optim.file):
            continue
        says_step = step_of(optim) is not None and updates_of(mp_shard.model) is not None
        says_step = says_step and began_before(mp_shard.model, optim) is None
        if says_step or not any(partition.numel for partition in optim.masters):
            yield optim.file.name
