"""Check that a DeepSpeed checkpoint can be laid out again, and that its masters match its
weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.flat_ranges import ranges_of
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
from zerotools.formats.deepspeed.partitioning.pair_masters_with_weights import pairs_of
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings, mics_keys, zero_optimization
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3, first_of
from zerotools.formats.deepspeed.schema.tag_file_names import is_layer_file, name_for_rank
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.dtype_casts import Array, numpy_cast, numpy_dtype

QUANTIZED = "zero_quantized_nontrainable_weights"
COMPARED = 64
"""The number of elements of each part of a master that are compared with the weight."""


def check_supported(path: Path, mp_shard: MpShard, count: int, settings: ZeroSettings) -> None:
    """Check that the files of a DeepSpeed checkpoint can be written again; `count` is the number
    of model-parallel ranks.

    Raises:
        Unsupported: zerotools cannot write files of this kind.
        BadFile: a rank is missing, so its experts are missing too.
    """
    if not mp_shard.groups:
        if mp_shard.model.optimizer is not None and count > 1:
            raise Unsupported(
                f"{path} is of stage 0 with {count} model-parallel ranks (pipeline or tensor), "
                "and its optimizer state has numbers instead of parameter names, so zerotools "
                "cannot distribute it. DeepSpeed loads it on any number of data-parallel ranks "
                "at stage 0; for another stage, convert only its weights with zerotools "
                "convert --weights-only"
            )
        if mp_shard.model.optimizer is not None:
            raise Unsupported(
                f"{path} is of stage 0: each rank has everything, and any number of ranks can "
                "load it at stage 0. For another stage, use zerotools convert --to deepspeed "
                "--stage 1 (or 2, or 3), with --order model or --order FILE if the files do "
                "not show which weight each number of the optimizer stands for"
            )
        raise Unsupported(
            f"{path} has no ZeRO partitions that name their parameters, so there is nothing to "
            "distribute over other ranks"
        )
    if count > 1 and settings.settled().stage == 3:
        raise Unsupported(
            f"{path} has {count} model-parallel ranks (pipeline or tensor), and zerotools does "
            "not convert such a checkpoint to stage 3"
        )
    if mp_shard.model.num_experts:
        _check_experts(path, mp_shard, count, settings)
    if mp_shard.model.optimizer is not None and settings.settled().stage is None:
        raise Unsupported(
            f"{path} is of stage 0: DeepSpeed also stores the optimizer state of the first rank in "
            f"{mp_shard.model.file.name}, and zerotools does not write this form; pass --stage 1"
        )
    config = mp_shard.model.ds_config
    size, saved = mp_shard.model.data_parallel_size, len(mp_shard.optim_states)
    if size not in (None, saved) and not mics_keys(zero_optimization(config)):
        raise Unsupported(
            f"{mp_shard.model.file.path} is from a run of {size} ranks, but its optimizer files "
            f"are from a run of {saved}, and the configuration does not use MiCS; take another "
            "checkpoint"
        )
    if zero_optimization(config).get(QUANTIZED) and mp_shard.model.frozen_shapes:
        raise Unsupported(
            f"{path} has {QUANTIZED}: its frozen weights are quantized, and the scales are not "
            f"in the checkpoint; save it without {QUANTIZED}"
        )
    if mp_shard.model.groups is None:
        raise Unsupported(
            f"{path} was saved by DeepSpeed {mp_shard.model.version}, but zerotools reads 0.6.0 "
            "and later; load it with a newer DeepSpeed and save it again"
        )


def _check_experts(path: Path, mp_shard: MpShard, count: int, settings: ZeroSettings) -> None:
    """Check that the experts can be written for another number of ranks. Only the number of ranks
    that share the same experts may change.
    """
    optim, stage = first_of(mp_shard.optim_states), settings.settled().stage
    is_stacked = bool(mp_shard.model.stacked_experts.layers)
    if count > 1:
        raise Unsupported(
            f"{path} has experts and {count} model-parallel ranks, and zerotools does not reshard "
            "both together"
        )
    if is_stacked and stage is not None and (stage == 3) != (optim.kind == STAGE_3):
        raise Unsupported(
            f"{path} has experts of AutoEP, which have separate files at stages 1 and 2, but are "
            "in the partitions at stage 3: zerotools reshard does not change between the two; "
            "use zerotools convert --to universal for a checkpoint that loads at every stage"
        )
    if not is_stacked and (optim.kind == STAGE_3 or stage == 3):
        raise Unsupported(
            f"{path} has experts, which zerotools writes only for stages 1 and 2, as DeepSpeed does"
        )
    if not optim.is_rigid:
        raise Unsupported(
            f"{path} has experts and elastic optimizer state, which does not say which groups "
            "have experts; save it without elastic_checkpoint"
        )
    for rank, there in enumerate(mp_shard.optim_states):
        if there is None:
            name = name_for_rank(optim.file.name, rank)
            raise BadFile(
                f"{path / name} is missing, and its experts may be in no other file; copy or "
                "download it again"
            )


def check_weights(source: Checkpoint) -> None:
    """Check the weights of every model-parallel rank with `check_masters`.

    Raises:
        Unsupported: a rank fails the check of `check_masters`.
    """
    for mp_rank in range(len(native_of(source).mp_shards)):
        check_masters(source, mp_rank)


def check_masters(source: Checkpoint, mp_rank: int) -> None:
    """Compare the first elements of every part of each master with the weight that was cast from
    it.

    If master and weight agree, the files are from one save, and the flat buffers are in the order
    of `param_shapes`, whatever the run's configuration is. Stage 3 has no weights to compare.

    Raises:
        Unsupported: a master and its weight differ, so the flat buffers are not in the recorded
            order, or the files are from two saves.
    """
    compare_weights(source, pairs_of(source, mp_rank))


def compare_weights(source: Checkpoint, pairs: Iterable[tuple[str, Tensor, Tensor]]) -> None:
    """Compare masters with the weights that were cast from them, for each (name, master, weight).
    The first elements of every part of the master are compared.

    Raises:
        Unsupported: a weight is not the cast of its master.
        BadFile: a file is truncated.
    """
    with OpenFiles(source.root) as files:
        for name, master, weight in pairs:
            for ours, theirs in _samples(files, master, weight):
                cast = np.empty(ours.size, theirs.dtype)
                numpy_cast(cast, ours)
                both = (cast.astype(np.float64), theirs.astype(np.float64))
                if not np.array_equal(*both, equal_nan=True):
                    raise Unsupported(
                        f"{_path(source, weight)}: {name} is not equal to its master in "
                        f"{_path(source, master)} after a cast to {weight.dtype}. Possible "
                        "reasons: the files are from two saves, the order of the flat buffers is "
                        "not that of param_shapes, or the run saved averaged weights (EMA); "
                        "take another checkpoint, or load it with DeepSpeed and save it "
                        f"again{_as_they_are(source, name, weight)}"
                    )


def _as_they_are(source: Checkpoint, name: str, weight: Tensor) -> str:
    what, path = "; to export the weights as they are, ", _path(source, weight)
    if Key(name, "param16") in source.tensors:
        return f"{what}use zerotools consolidate --from weights"
    if is_layer_file(path.name):
        return ""
    return f"{what}save torch.load({str(path)!r})['module'] with torch.save, and consolidate that"


def _path(source: Checkpoint, tensor: Tensor) -> Path:
    return source.root / next(iter(tensor.chunks)).file


def _samples(files: OpenFiles, master: Tensor, weight: Tensor) -> Iterator[tuple[Array, Array]]:
    """Yield two arrays for each range of the master: its first elements (at most `COMPARED`), and
    the same elements of the weight.
    """
    whole = ranges_of(weight)
    if whole is None or len(whole) != 1:
        return
    for begin, end, file, offset in ranges_of(master) or ():
        count = min(COMPARED, end - begin)
        at = whole[0].offset + begin * weight.dtype.itemsize
        yield (
            _read(files, file, offset, count, master.dtype),
            _read(files, whole[0].file, at, count, weight.dtype),
        )


def _read(files: OpenFiles, file: str, offset: int, count: int, dtype: DType) -> Array:
    values = np.empty(count, numpy_dtype(dtype))
    files.read_into(file, offset, values.view(np.uint8).data)
    return values
