"""Weights for everyone: one 16-bit safetensors model out of any sharded checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.formats.safetensors import lay_out
from zerotools.ops.convert import Conversion
from zerotools.ops.execute import Report
from zerotools.ops.rewrite import describe, select

DTYPES = {"fp16": dtypes.FLOAT16, "bf16": dtypes.BFLOAT16, "fp32": dtypes.FLOAT32}
SIXTEEN_BIT = (dtypes.FLOAT16, dtypes.BFLOAT16)
EXPORTED_ROLES = ("param", "buffer")
DEFAULT_MAX_SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `zerotools consolidate` was asked for; `dtype` is a key of `DTYPES`, or "auto"."""

    dtype: str = "auto"
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    keep_aliases: bool = False


def prepare(
    path: Path, destination: Path, options: Options, *, tag: str | None = None
) -> Conversion:
    """Lay out the export of the checkpoint at `path`; nothing is written.

    Raises:
        BadRequest: `path` does not exist, or no tensor is selected.
        BadFile: it is no checkpoint, or its metadata is damaged.
    """
    checkpoint = formats.read(path, tag=tag)
    notes = list(checkpoint.origin.notes)
    dtype, why = _choose_dtype(checkpoint, options.dtype)
    if why:
        notes.append(why)
    weights = select(checkpoint, lambda key: _is_wanted(key, options))
    if not weights.tensors:
        raise BadRequest(f"{path} has no weights that match; nothing to export")
    weights, said = _settle_aliases(weights, keep=options.keep_aliases)
    notes += said
    wanted = describe(weights, lambda _, tensor: _exported_dtype(tensor, dtype))
    target = lay_out(wanted, destination, max_shard_bytes=options.max_shard_bytes)
    return Conversion(weights, target, (*notes, *target.notes))


def _is_wanted(key: Key, options: Options) -> bool:
    if key.role not in EXPORTED_ROLES:
        return False
    if options.include and not any(fnmatchcase(key.name, glob) for glob in options.include):
        return False
    return not any(fnmatchcase(key.name, glob) for glob in options.exclude)


def _choose_dtype(checkpoint: Checkpoint, asked: str) -> tuple[DType, str | None]:
    """The type of the export's floating-point tensors, and a sentence where it was our choice."""
    if asked != "auto":
        return DTYPES[asked], None
    precision = checkpoint.origin.details.get("precision")
    if precision in ("fp16", "bf16"):
        return DTYPES[precision], None
    present = {
        tensor.dtype
        for key, tensor in checkpoint.tensors.items()
        if key.role in ("param", "param16") and tensor.dtype in SIXTEEN_BIT
    }
    if len(present) == 1:
        return present.pop(), None
    reason = "the checkpoint holds both 16-bit types" if present else "the run was in fp32"
    return dtypes.BFLOAT16, f"--dtype auto chose bf16: {reason}"


def _exported_dtype(tensor: Tensor, dtype: DType) -> DType:
    """Integers, booleans and 8-bit floats (which have scales of their own) keep their type."""
    return dtype if tensor.dtype.is_float and tensor.dtype.bits >= 16 else tensor.dtype


def _settle_aliases(weights: Checkpoint, *, keep: bool) -> tuple[Checkpoint, list[str]]:
    """Leave tied names out where the model's config ties them again, else write them out."""
    if not weights.aliases:
        return weights, []
    listed = ", ".join(f"{alias} = {name}" for alias, name in weights.aliases.items())
    if not keep and _config_ties(weights):
        return weights, [f"tied weights are stored once, as config.json says: {listed}"]
    why = "as asked" if keep else "no config.json says that they are tied"
    tensors = dict(weights.tensors)
    for alias, name in weights.aliases.items():
        tensors.setdefault(Key(alias, "param"), tensors[Key(name, "param")])
    written = replace(weights, tensors=tensors, aliases={})
    return written, [f"tied weights are written under each name, {why}: {listed}"]


def _config_ties(checkpoint: Checkpoint) -> bool:
    path = checkpoint.companions.get("config.json")
    if path is None:
        return False
    try:
        config: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("tie_word_embeddings") is True


def refuse_overflow(report: Report) -> None:
    """Veto an export in which finite weights became infinite.

    Raises:
        BadRequest: names each tensor, how many of its values, and the largest of them.
    """
    lost = {key: losses for key, losses in report.losses.items() if losses.overflowed}
    if not lost:
        return
    worst = "; ".join(
        f"{key}: {losses.overflowed} values up to {losses.largest:g}"
        for key, losses in list(lost.items())[:10]
    )
    more = f"; and {len(lost) - 10} more tensors" if len(lost) > 10 else ""
    raise BadRequest(
        f"{len(lost)} tensors do not fit in fp16 (largest 65504): {worst}{more}; use --dtype bf16, "
        "or --allow-overflow to write infinities"
    )
