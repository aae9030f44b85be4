"""The tensors of any checkpoint with Megatron's names, one for each layer and each expert.

A layout map stacks the layers of a model and the experts of a layer along the first axes; what
Megatron itself saved is read one by one. Here both are alike, under the names that the reader of
this format gives: `decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunksOnDemand, Key, Tensor
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.scaling.scaled_cast import ScaledCast
from zerotools.formats.megatron.tensor_names import stack_of
from zerotools.formats.torch_optimizers import STATE_ROLE

_KEPT = 4
_MOST_TENSORS = 2**20
_Index = tuple[int, ...]


@dataclass(frozen=True)
class SingleTensors:
    """`tensors` by the keys of the reader; `keys` has those of each tensor of the source."""

    tensors: Mapping[Key, Tensor]
    keys: Mapping[Key, tuple[Key, ...]]


def single_tensors(source: Checkpoint) -> SingleTensors:
    """Return the tensors of `source`, one for each weight; no byte is read. Tensors without a
    parameter's name, and numbers of an optimizer, are left out.

    Raises:
        BadRequest: two tensors get one name, or there are more layers than any model has.
        Unsupported: a stacked tensor that is computed from others.
    """
    kept = _StackedChunks()
    tensors: dict[Key, Tensor] = {}
    keys: dict[Key, tuple[Key, ...]] = {}
    for key, tensor in source.tensors.items():
        if key.role == STATE_ROLE or not tensor.shape:
            continue
        made = _singles(source, key, tensor, kept)
        twice = next((each for each in made if each in tensors), None)
        if twice is not None:
            raise BadRequest(f"{source.origin.path}: {key} has {twice}, which already exists")
        tensors |= made
        keys[key] = tuple(made)
    return SingleTensors(tensors, keys)


def _singles(
    source: Checkpoint, key: Key, tensor: Tensor, kept: _StackedChunks
) -> dict[Key, Tensor]:
    stack = stack_of(key.name)
    if not stack.axes:
        return {key: tensor}
    if len(tensor.shape) <= stack.axes or prod(tensor.shape[: stack.axes]) > _MOST_TENSORS:
        raise BadRequest(
            f"{source.origin.path}: {key} has shape {list(tensor.shape)}, but {stack.axes} of its "
            "axes should count layers or experts"
        )
    if isinstance(tensor, ScaledCast):
        raise Unsupported(f"{source.origin.path}: {key} is quantised; write plain weights first")
    shape = tensor.shape[stack.axes :]
    return {
        Key(name, key.role): Tensor(
            tensor.dtype, shape, ChunksOnDemand(partial(kept.at, tensor, index))
        )
        for index, name in stack.names(tensor.shape)
    }


class _StackedChunks:
    """The chunks of the last few stacked tensors, by their index along the leading axes: the parts
    of one are planned one after the other."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, tuple[Tensor, dict[_Index, list[Chunk]]]] = OrderedDict()

    def at(self, tensor: Tensor, index: _Index) -> list[Chunk]:
        """Return the chunks of the part at `index`, in coordinates of the part."""
        known = self._found.get(id(tensor))
        if known is None:
            known = self._found[id(tensor)] = tensor, _by_index(tensor, len(index))
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return known[1].get(index, [])


def _by_index(tensor: Tensor, axes: int) -> dict[_Index, list[Chunk]]:
    found: dict[_Index, list[Chunk]] = {}
    for chunk in tensor.chunks:
        start, stop = chunk.box.start, chunk.box.stop
        strides = chunk.strides or row_major_strides(chunk.box.shape)
        inner = Box(start[axes:], chunk.box.shape[axes:])
        for index in product(*map(range, start[:axes], stop[:axes])):
            skipped = sum(
                (at - first) * step for at, first, step in zip(index, start, strides, strict=False)
            )
            offset = chunk.offset + skipped * tensor.dtype.itemsize
            part = Chunk(inner, chunk.file, offset, strides[axes:])
            plain = Chunk(inner, chunk.file, offset)
            found.setdefault(index, []).append(plain if part.is_contiguous else part)
    return found
