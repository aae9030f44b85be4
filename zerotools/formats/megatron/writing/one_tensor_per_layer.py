"""Split the tensors of a checkpoint with Megatron's names into one tensor for each layer and each
expert.

In the result of a layout map, the layers of a model and the experts of a layer are stacked along
the first axes. A checkpoint that Megatron saved is read as separate tensors. This module turns
stacked tensors into separate ones, and gives all tensors the names that the reader of this format
uses: `decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, ChunksOnDemand, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.scaled_cast import ScaledCast
from zerotools.formats.megatron.torch_dist_keys import stack_of
from zerotools.formats.torch_optimizers import STATE_ROLE

_KEPT = 4
_MOST_TENSORS = 2**20
_Index = tuple[int, ...]


@dataclass(frozen=True)
class SingleTensors:
    """One tensor for each layer and each expert. `tensors` has these tensors under the keys that
    the reader uses. `keys` is key of a tensor in the source -> keys of the tensors made from it.
    """

    tensors: Mapping[Key, Tensor]
    keys: Mapping[Key, tuple[Key, ...]]


def single_tensors(source: Checkpoint) -> SingleTensors:
    """Return the tensors of `source`, split into one for each weight of a layer or expert. No
    tensor data is read.

    Tensors that do not have the name of a parameter, and numbers of an optimizer, are left out.

    Raises:
        BadRequest: two tensors get the same name, or there are more layers than any model has.
        Unsupported: a stacked tensor is quantised.
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
            raise BadRequest(
                f"{source.origin.path}: a part of {key} would get the name {twice}, which another "
                "tensor already has; rename one of the two"
            )
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
            f"{source.origin.path}: the shape {list(tensor.shape)} of {key} does not fit its name, "
            f"which needs {count_text(stack.axes, 'axis', 'axes')} for layers or experts (at most "
            f"{_MOST_TENSORS} weights) and then the axes of one weight"
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
    """The chunks of the most recently used stacked tensors, keyed by the index along the leading
    axes. They are cached because the single tensors of a stacked tensor are planned in sequence.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[int, tuple[Tensor, dict[_Index, list[Chunk]]]] = OrderedDict()

    def at(self, tensor: Tensor, index: _Index) -> list[Chunk]:
        """Return the chunks of the single tensor at `index`, with boxes in the coordinates of this
        tensor.
        """
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


_LAYER = re.compile(r"(.*\blayers\.\d+\.(?:transformer_layer\.)?)(.+)", re.S)
_PRE_MLP, _FC1 = "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"
_INPUT, _QKV = "input_layernorm.", "self_attention.linear_qkv.layer_norm_"
_LATENT = {
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
}


@dataclass(frozen=True)
class NormNames:
    """The names under which norms are written.

    `written` is name of a norm -> its name in the output. `second` has an entry for each norm that
    is written twice: its name in the output -> its second name in the output.
    """

    written: Mapping[str, str]
    second: Mapping[str, str]


def norm_names(names: Collection[str]) -> NormNames:
    """Return the names of the norms of a model with weights `names`.

    Megatron's own layers and Transformer Engine's layers use different names for some norms:

        in both                                       where
        self_attention.linear_qkv.layer_norm_weight   attention with linear_qkv
        input_layernorm.weight                        latent attention
        mlp.linear_fc1.layer_norm_weight              a dense layer without latent attention

        Transformer Engine                                  Megatron's own
        pre_mlp_layernorm.weight                            mlp.linear_fc1.layer_norm_weight
        mlp.linear_fc1.layer_norm_weight (latent, dense)    pre_mlp_layernorm.weight
        self_attention.linear_q_up_proj.layer_norm_weight   self_attention.q_layernorm.weight
        self_attention.linear_kv_up_proj.layer_norm_weight  self_attention.kv_layernorm.weight

    In the second table, only the first row is for layers without latent attention. A norm is
    written under the name in Transformer Engine's layers and, if the name in Megatron's own layers
    differs, under that name too.

    Source: megatron/core/models/gpt/gpt_layer_specs.py of 0.16 (`sharded_state_dict_keys_map`).
    """
    written: dict[str, str] = {}
    second: dict[str, str] = {}
    for name in names:
        match = _LAYER.fullmatch(name)
        if match is None:
            continue
        for fused, own in _pairs(match[1], names):
            for old in (fused, own):
                end = match[2].removeprefix(old)
                if end in ("weight", "bias") and match[2] == old + end:
                    written[name] = f"{match[1]}{fused}{end}"
                    if _asks_for_both(match[1], own, fused, names):
                        second[written[name]] = f"{match[1]}{own}{end}"
    return NormNames(written, second)


def _pairs(layer: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (name in Transformer Engine's layers, name in Megatron's own layers) for each norm that
    has two names.
    """
    if f"{layer}self_attention.linear_qkv.weight" in names:
        yield _QKV, _INPUT
    is_dense = f"{layer}mlp.linear_fc1.weight" in names
    yield (_FC1, _PRE_MLP) if is_dense else (_PRE_MLP, _FC1)
    for own, fused in _LATENT.items():
        if layer + fused.replace("layer_norm_", "weight") in names:
            yield fused, own


def _asks_for_both(layer: str, own: str, fused: str, names: Collection[str]) -> bool:
    """Return whether Transformer Engine's layers and Megatron's own layers load this norm under
    different names, so that it must be written twice.
    """
    is_latent = f"{layer}self_attention.linear_kv_up_proj.weight" in names
    return fused == _PRE_MLP or own in _LATENT or (is_latent and fused == _FC1)
