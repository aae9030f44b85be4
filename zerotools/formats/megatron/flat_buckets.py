"""Read masters and moments from the flat buckets of `dp_reshardable`, if their order is proved.

Each pair of a tensor-parallel rank and a pipeline stage has a buffer. It holds the parameters of
the pair in the reverse of the order in which the model creates them, each beginning at a multiple
of 64 elements. A buffer may be split into consecutive buckets. The files do not name the
parameters. But Megatron stores each parameter's elements, and each gap between two parameters, as
separate chunks. So this module tries the order of Megatron's own layers and the order of
Transformer Engine's layers. It accepts an order only if every parameter begins and ends at the edge
of a chunk, gaps come only from rounding up to 64, the last parameter ends where the last bucket
ends, and no other order fits.

    exp_avg of TP rank 0, hidden 16:  [0:256) output_layer  [256:272) final_layernorm  [272:320) gap
                                      [320:512) linear_fc2 of the last layer ...

Models with experts, latent attention, virtual stages or uneven pipeline stages are not tried.

Source: megatron/core/distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py
(`sharded_param_state_dp_reshardable`) of 0.16. In a key, `dp_group_idx_G` means
tensor-parallel rank G % TP of pipeline stage G // TP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import NamedTuple, cast

from zerotools.core.boxes import Box, boxes_of_range, row_major_strides
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.errors import Unsupported
from zerotools.formats.megatron.tensor_parallel_cuts import Cut, cut_of
from zerotools.formats.megatron.training_state import EMBEDDING, OUTPUT, MegatronFacts
from zerotools.io.distcp.item_chunks import DerivedChunks, ItemChunks, StoredPiece

_BUCKET = re.compile(
    r"optimizer\.distributed\.dp_group_idx_(\d{1,7})\.gbuf_idx_0\.dtype_\((.+)\)"
    r"\.bucket_idx_(\d{1,7})\.(param|exp_avg|exp_avg_sq)"
)
_ALIGNED = 64
_ROLES = ("param", "exp_avg", "exp_avg_sq")
_FIRST = "self_attention.linear_qkv.layer_norm_"
_MIDDLE = "mlp.linear_fc1.layer_norm_"
_PROJECTION = ("self_attention.linear_proj.weight", "self_attention.linear_proj.bias")
_QKV = ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias")
_HEADS = ("self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight")
_UP = ("mlp.linear_fc1.weight", "mlp.linear_fc1.bias")
_DOWN = ("mlp.linear_fc2.weight", "mlp.linear_fc2.bias")


def _norm(name: str) -> tuple[str, str]:
    return f"{name}weight", f"{name}bias"


_ORDERS = (
    (*_norm(_FIRST), *_PROJECTION, *_QKV, *_HEADS, *_norm(_MIDDLE), *_UP, *_DOWN),
    (*_PROJECTION, *_norm(_FIRST), *_QKV, *_HEADS, *_norm(_MIDDLE), *_UP, *_DOWN),
)
"""The parameter orders within one layer: Megatron's, and Transformer Engine's, in which a norm is a
part of the layer that follows it."""


class _Param(NamedTuple):
    """A parameter of one rank: its shape on this rank, and the index `begin` of its first element
    in bucket number `bucket`.
    """

    name: str
    shape: tuple[int, ...]
    cut: Cut
    bucket: int = 0
    begin: int = 0


_Buckets = Mapping[tuple[int, str], Sequence[Tensor]]
"""The buckets of each buffer in order, keyed by (N in `dp_group_idx_N`, role)."""
_Found = Mapping[str, Sequence[tuple[int, _Param]]]
"""Name of a parameter -> (N in `dp_group_idx_N`, the parameter in this buffer) for each buffer that
has a part of it.
"""


def proved_state(
    stored: Mapping[Key, Tensor], weights: Mapping[Key, Tensor], facts: MegatronFacts
) -> dict[Key, Tensor]:
    """Return the masters and moments of each parameter, from the buckets in `stored`.

    The result is empty if the order of the parameters in the buckets cannot be proved. `weights`
    has one tensor for each layer.
    """
    buckets = _buckets(stored)
    ranks, stages = facts.sizes.get("TP"), facts.sizes.get("PP")
    if not buckets or not ranks or not stages or _is_special(facts):
        return {}
    numbers = {number for number, _ in buckets}
    if len(numbers) != ranks * stages or max(numbers) != len(numbers) - 1:
        return {}
    found: dict[str, list[tuple[int, _Param]]] = {}
    for number in sorted(numbers):
        placed = [
            each
            for order in _ORDERS
            if (params := _params(number // ranks, stages, ranks, order, weights, facts))
            and (each := _placed(params, buckets[number, "exp_avg"]))
        ]
        if len(placed) != 1:
            return {}
        for param in placed[0]:
            name = EMBEDDING if facts.is_tied and param.name == OUTPUT else param.name
            found.setdefault(name, []).append((number, param))
    if found.keys() != {key.name for key in weights if key.role == "param"}:
        return {}
    return _tensors(buckets, found, weights, ranks)


def with_state(tensors: Mapping[Key, Tensor], state: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Return `tensors` with the masters and moments in `state` instead of the buckets."""
    found = {}
    for key, tensor in tensors.items():
        if not _BUCKET.fullmatch(key.name):
            has_master = key.role == "param" and key in state
            found[Key(key.name, "param16") if has_master else key] = tensor
    return found | dict(state)


def _buckets(stored: Mapping[Key, Tensor]) -> _Buckets:
    """Return the buckets in order, keyed by (N in `dp_group_idx_N`, role).

    The result is empty if parameters have several dtypes, or if a bucket or a role is missing.
    """
    found: dict[tuple[int, str], dict[int, Tensor]] = {}
    types = set()
    for key, tensor in stored.items():
        if (match := _BUCKET.fullmatch(key.name)) and len(tensor.shape) == 1:
            types.add(match[2])
            found.setdefault((int(match[1]), match[4]), {})[int(match[3])] = tensor
        elif key.name.startswith(("optimizer.", "chained_")):
            return {}
    lengths: dict[int, set[tuple[int, ...]]] = {}
    for (number, _), each in found.items():
        if set(each) != set(range(len(each))):
            return {}
        lengths.setdefault(number, set()).add(tuple(each[n].numel for n in range(len(each))))
    complete = all((number, role) in found for number in lengths for role in _ROLES)
    if len(types) != 1 or not complete or any(len(each) != 1 for each in lengths.values()):
        return {}
    return {key: [each[n] for n in range(len(each))] for key, each in found.items()}


def _is_special(facts: MegatronFacts) -> bool:
    """Return whether the model has a feature with which this module does not try to find the
    order.
    """
    virtual = ("virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage")
    return any(facts.args.get(name) not in (None, 1) for name in virtual) or bool(
        facts.count("num_experts")
    )


def _params(
    stage: int,
    stages: int,
    ranks: int,
    order: Sequence[str],
    weights: Mapping[Key, Tensor],
    facts: MegatronFacts,
) -> list[_Param]:
    """Return one rank's parameters in the order in which its model creates them; an empty list if
    one of them is unknown.
    """
    shapes = {key.name: tensor.shape for key, tensor in weights.items() if key.role == "param"}
    layers = facts.count("num_layers") or 0
    if not layers or layers % stages or layers > len(shapes):
        return []
    names = [EMBEDDING, "embedding.position_embeddings.weight"] if stage == 0 else []
    for layer in range(stage * layers // stages, (stage + 1) * layers // stages):
        if f"decoder.layers.{layer}.{_DOWN[0]}" not in shapes:
            return []
        names += [f"decoder.layers.{layer}.{suffix}" for suffix in order]
    if stage == stages - 1:
        names += ["decoder.final_layernorm.weight", "decoder.final_layernorm.bias", OUTPUT]
        if facts.is_tied and stages > 1 and EMBEDDING in shapes:
            shapes[OUTPUT] = shapes[EMBEDDING]
    found = []
    for name in names:
        if name not in shapes:
            continue
        try:
            cut = cut_of(name, shapes[name], ranks, facts.args)
        except Unsupported:
            return []
        shape = list(shapes[name])
        if cut.axis is not None:
            if shape[cut.axis] % ranks:
                return []
            shape[cut.axis] //= ranks
        found.append(_Param(name, tuple(shape), cut))
    return found


def _placed(params: Sequence[_Param], buckets: Sequence[Tensor]) -> list[_Param]:
    """Return the parameters with their positions in the buckets; an empty list if a parameter does
    not begin and end with a chunk.
    """
    found = []
    bucket, end = 0, 0
    edges = _edges(buckets[0])
    for param in reversed(params):
        count = prod(param.shape)
        begin = -(-end // _ALIGNED) * _ALIGNED
        if end == buckets[bucket].numel and bucket + 1 < len(buckets):
            bucket, begin = bucket + 1, 0
            edges = _edges(buckets[bucket])
        end = begin + count
        if begin not in edges or end not in edges:
            return []
        found.append(param._replace(bucket=bucket, begin=begin))
    return found if (bucket, end) == (len(buckets) - 1, buckets[-1].numel) else []


def _edges(bucket: Tensor) -> set[int]:
    """Return the indices in the bucket at which a chunk begins or ends."""
    boxes = cast(ItemChunks, bucket.chunks).boxes
    return {box.start[0] for box in boxes} | {box.stop[0] for box in boxes}


def _tensors(
    buckets: _Buckets, found: _Found, weights: Mapping[Key, Tensor], ranks: int
) -> dict[Key, Tensor]:
    made = {}
    for name, places in found.items():
        weight = weights[Key(name, "param")]
        for role in _ROLES:
            if role == "param" and weight.dtype.bits > 16:
                continue  # a copy of the fp32 weight
            dtype = buckets[0, role][0].dtype
            pieces = partial(_pieces, buckets, role, places, ranks)
            made[Key(name, role)] = Tensor(dtype, weight.shape, DerivedChunks(dtype, pieces))
    return made


def _pieces(
    buckets: _Buckets, role: str, places: Sequence[tuple[int, _Param]], ranks: int
) -> list[StoredPiece]:
    return [
        piece
        for number, param in places
        for piece in _of_rank(buckets[number, role][param.bucket], param, number % ranks, ranks)
    ]


def _of_rank(bucket: Tensor, param: _Param, rank: int, ranks: int) -> Iterator[StoredPiece]:
    """Yield the pieces, in this bucket, of a parameter of tensor-parallel rank `rank`, with their
    positions in the whole tensor.
    """
    source = cast(ItemChunks, bucket.chunks)
    strides = row_major_strides(param.shape)
    for number, box in enumerate(source.boxes):
        first = max(0, box.start[0] - param.begin)
        last = min(prod(param.shape), box.stop[0] - param.begin)
        if first >= last:
            continue
        skipped = param.begin - box.start[0]
        for some in boxes_of_range(param.shape, first, last):
            for start, whole in param.cut.parts(param.shape, rank, ranks):
                common = some.intersect(Box(start, whole.shape))
                if common is None:
                    continue
                at = sum(a * b for a, b in zip(common.start, strides, strict=True))
                inside = common.relative_to(Box(start, whole.shape))
                where = tuple(a + b for a, b in zip(inside.start, whole.start, strict=True))
                place = Box(where, common.shape)
                yield StoredPiece(source, number, (skipped + at,), place, is_flat=True)
