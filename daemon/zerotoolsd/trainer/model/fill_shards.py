"""Fills this rank's part of each tensor from files: a Hugging Face directory, or any checkpoint.

A rank reads only the parts that it keeps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.hub_layout import HubBlock
from zerotools.io.files.regular_files import open_regular
from zerotools.ops.execution.plan_copies import distinct_chunks
from zerotoolsd.trainer.allocate_tensors import START, MemoryTier
from zerotoolsd.trainer.model.add_lora_adapters import base_name, is_adapter
from zerotoolsd.trainer.model.hub_tensors import StoredReader
from zerotoolsd.trainer.model.match_pretrained import Pretrained
from zerotoolsd.trainer.model.nf4_linear import packed_buffers, packed_linears
from zerotoolsd.trainer.model.sharding import local_part


def is_from_seed(name: str, pretrained: Pretrained) -> bool:
    """Return whether the parameter `name` gets its values from the seed.

    This is the case for a parameter of an adapter, and for a weight that the directory of
    `pretrained` lacks.
    """
    return is_adapter(name) or base_name(name) in pretrained.initial


def values_by_rule(model: Any, pretrained: Pretrained | None, *, resumes: bool) -> set[str]:
    """Return the names of parameters and buffers that get their values from the model's
    initialisation.

    All other tensors get values from the directory of `pretrained`, or from a checkpoint if the run
    `resumes`.
    """
    buffers = {name for name, _ in model.named_buffers()} - packed_buffers(model)
    state = {name for name, _ in model.named_parameters()} | persistent_buffers(model).keys()
    if pretrained is not None:
        return (buffers - state) | {name for name in state if is_from_seed(name, pretrained)}
    if resumes:
        return buffers - state
    return buffers | state


def load_weights(
    targets: Mapping[str, torch.Tensor], aliases: Mapping[str, str], pretrained: Pretrained
) -> None:
    """Fill the shards `targets`, which are keyed by parameter name, with the weights in the
    directory of `pretrained`.

    Parameters without values in the directory stay unchanged. Values are cast to the dtype of the
    shard. `aliases` maps other names of tied parameters to their first names. In the directory, a
    tied parameter may have any of its names.

    Raises:
        BadFile: a safetensors file is damaged.
    """
    with ExitStack() as stack, torch.no_grad():
        reader = StoredReader(pretrained.stored, stack)
        for name, tensor in targets.items():
            if not is_from_seed(name, pretrained):
                _fill(tensor, _blocks(name, aliases, pretrained), reader)


def load_packed(
    model: Any,
    aliases: Mapping[str, str],
    pretrained: Pretrained,
    tier: MemoryTier,
    dtype: torch.dtype,
) -> None:
    """Fill the 4-bit layers of `model` from the directory of `pretrained`, one layer at a time.

    Each weight is read completely into temporary memory of the tier `tier`, and rounded to `dtype`
    before it is packed, as transformers' loader does.

    Raises:
        BadFile: a safetensors file is damaged.
    """
    with ExitStack() as stack, torch.no_grad():
        reader = StoredReader(pretrained.stored, stack)
        for name, layer in packed_linears(model):
            weight = tier.empty((layer.out_features, layer.in_features), dtype, START)
            _fill(weight, _blocks(f"{name}.weight", aliases, pretrained), reader)
            layer.pack_weight(weight)


def persistent_buffers(model: Any) -> dict[str, torch.Tensor]:
    """Return the buffers of `model` that checkpoints save, keyed by name."""
    kept = {}
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                kept[f"{prefix}.{name}" if prefix else name] = buffer
    return kept


def _blocks(name: str, aliases: Mapping[str, str], pretrained: Pretrained) -> tuple[HubBlock, ...]:
    tied = (alias for alias, canonical in aliases.items() if canonical == name)
    for candidate in (name, *tied):
        found = pretrained.blocks.get(base_name(candidate))
        if found is not None:
            return found
    raise BadRequest(f"model.path: the directory has no tensor for {name}")


def _fill(tensor: torch.Tensor, blocks: tuple[HubBlock, ...], reader: StoredReader) -> None:
    local, kept = tensor, Box.whole(tuple(tensor.shape))
    if isinstance(tensor, DTensor):
        local, slices = local_part(tensor)
        kept = Box(tuple(s.start for s in slices), tuple(local.shape))
    for block in blocks:
        part = block.part(kept)
        if part is not None:
            inside = part.box.relative_to(kept)
            place = tuple(slice(a, b) for a, b in zip(inside.start, inside.stop, strict=True))
            local[place].copy_(reader.read(part))


PIECE_BYTES = 64 << 20


def fill_shard(tensor: torch.Tensor, key: Key, stored: Tensor, reader: BoxReader) -> None:
    """Fill this rank's part of `tensor` from the tensor `stored` with the key `key` in a
    checkpoint.

    `stored` has the shape of the whole tensor. Raises the errors of `BoxReader.fill`.
    """
    if not isinstance(tensor, DTensor):
        reader.fill(tensor, key, stored, Box.whole(tuple(tensor.shape)))
        return
    local, kept = local_part(tensor)
    if local.numel():
        box = Box(tuple(part.start for part in kept), tuple(local.shape))
        reader.fill(local, key, stored, box)


class BoxReader(AbstractContextManager["BoxReader"]):
    """Reads boxes (blocks with a range in each dimension) of the tensors of the checkpoint
    `source`, which may have any format.

    Files stay open until the reader is closed. Only the bytes between the first and the last
    element of a box are read, at most PIECE_BYTES at a time.
    """

    def __init__(self, source: Checkpoint) -> None:
        self._source = source
        self._files: dict[Path, int] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def fill(self, into: torch.Tensor, key: Key, tensor: Tensor, box: Box) -> None:
        """Copy the elements of `tensor` inside `box` to `into`, which has the shape of the box.

        Values are cast to the dtype of `into`.

        Raises:
            BadFile: the tensor is incomplete, or its file is truncated.
        """
        for chunk in distinct_chunks(key, tensor, self._source):
            common = chunk.box.intersect(box)
            if common is None or common.is_empty:
                continue
            for part in _parts(common, PIECE_BYTES // tensor.dtype.itemsize):
                inside = part.relative_to(box)
                place = tuple(
                    slice(start, start + size)
                    for start, size in zip(inside.start, inside.shape, strict=True)
                )
                into[place].copy_(self._read(key, tensor, chunk, part))

    def _read(self, key: Key, tensor: Tensor, chunk: Chunk, box: Box) -> torch.Tensor:
        strides = chunk.strides or row_major_strides(chunk.box.shape)
        inside = box.relative_to(chunk.box)
        first = sum(i * s for i, s in zip(inside.start, strides, strict=True))
        elements = 1 + sum((n - 1) * s for n, s in zip(box.shape, strides, strict=True))
        size = tensor.dtype.itemsize
        path = self._source.path_of(chunk)
        data = bytearray(elements * size)
        got = os.preadv(self._open(path), [data], chunk.offset + first * size)
        if got != len(data):
            raise BadFile(f"{path}: {key} ends after the end of the file; the file is truncated")
        flat = torch.frombuffer(data, dtype=getattr(torch, tensor.dtype.name))
        return flat.as_strided(box.shape, strides)

    def _open(self, path: Path) -> int:
        if path not in self._files:
            try:
                self._files[path] = open_regular(path)
            except OSError as error:
                raise BadFile(f"{path} cannot be opened: {error.strerror}") from None
        return self._files[path]


def _parts(box: Box, most: int) -> Iterator[Box]:
    """Divide `box` along its first dimensions, and yield parts with at most `most` elements."""
    cut = next((d for d, size in enumerate(box.shape) if size > 1), None)
    if cut is None or box.numel <= most:
        yield box
        return
    half = box.shape[cut] // 2
    for begin, size in ((0, half), (half, box.shape[cut] - half)):
        start = (*box.start[:cut], box.start[cut] + begin, *box.start[cut + 1 :])
        yield from _parts(Box(start, (*box.shape[:cut], size, *box.shape[cut + 1 :])), most)
