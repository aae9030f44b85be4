"""Determine how each weight is split over tensor-parallel ranks, from the name of its module.

A column-parallel layer is split along axis 0 of its weight, a row-parallel layer along axis 1. In
the first layer of a gated MLP, every rank has its share of the gate, followed by its share of the
other half. With F rows in each half and n ranks, rank r has F/n rows of the gate, beginning at row
r*F/n, and F/n rows of the other half, beginning at row F + r*F/n.

Source: megatron/core/tensor_parallel/layers.py, transformer/attention.py, mlp.py,
multi_latent_attention.py and multi_token_prediction.py, 0.12 to 0.16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from zerotools.core.boxes import Box
from zerotools.core.errors import Unsupported

_COLUMNS = frozenset(
    [
        "word_embeddings",
        "output_layer",
        "linear_qkv",
        "linear_q",
        "linear_kv",
        "linear_fc1",
        "eh_proj",
        "linear_q_proj",
        "linear_q_up_proj",
        "linear_kv_up_proj",
    ]
)
_ROWS = frozenset({"linear_proj", "linear_fc2"})
_WHOLE = frozenset({"router", "position_embeddings", "tokentype_embeddings", "shared_experts"})
_GATED = "linear_fc1"


class CutPart(NamedTuple):
    """A part of a tensor that is split over ranks: block `box` of the whole tensor begins at index
    `start` of one rank's tensor.
    """

    start: tuple[int, ...]
    box: Box


class Cut(NamedTuple):
    """The split of a tensor over tensor-parallel ranks: along `axis`, or not at all (None). If
    `halves` is 2, each half of the tensor is split separately.
    """

    axis: int | None
    halves: int = 1

    def whole(self, shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
        """Return the shape of the whole tensor if each rank has a tensor of shape `shape`."""
        if self.axis is None:
            return shape
        return (*shape[: self.axis], shape[self.axis] * ranks, *shape[self.axis + 1 :])

    def parts(self, shape: tuple[int, ...], rank: int, ranks: int) -> list[CutPart]:
        """Return the parts of one rank's tensor, which has shape `shape`, with their positions in
        the whole tensor.
        """
        zeros = (0,) * len(shape)
        if self.axis is None:
            return [CutPart(zeros, Box(zeros, shape))]
        rows = shape[self.axis] // self.halves
        found = []
        for half in range(self.halves):
            start = list(zeros)
            start[self.axis] = half * rows
            begin = list(zeros)
            begin[self.axis] = (half * ranks + rank) * rows
            size = list(shape)
            size[self.axis] = rows
            found.append(CutPart(tuple(start), Box(tuple(begin), tuple(size))))
        return found


def cut_of(name: str, shape: tuple[int, ...], ranks: int, args: Mapping[str, Any]) -> Cut:
    """Return how the weight `name` is split over `ranks` ranks; `shape` is its shape on one
    rank.

    Raises:
        Unsupported: the split is unknown, or depends on a value that the arguments do not record.
    """
    if ranks == 1:
        return Cut(None)
    module, _, leaf = name.rpartition(".")
    module = module.rpartition(".")[2]
    if leaf not in ("weight", "bias") or "norm" in module or module in _WHOLE:
        return _whole(name, module, leaf)
    if module in ("linear_q_down_proj", "linear_kv_down_proj"):
        return _down(name, module, shape, ranks, args)
    if module in _ROWS:
        return Cut(1 if leaf == "weight" and len(shape) == 2 else None)
    if module not in _COLUMNS or not shape:
        raise _unknown(name, "is not known")
    if module == "linear_qkv":
        _check_groups(name, ranks, args)
    if module != _GATED:
        return Cut(0)
    gated = args.get("swiglu", args.get("gated_linear_unit"))
    if not isinstance(gated, bool):
        raise _unknown(name, "depends on args.swiglu, which the files do not have")
    if gated and shape[0] % 2:
        raise _unknown(
            name, f"is not known: it is gated, but a rank has {shape[0]} rows of it, an odd number"
        )
    return Cut(0, 2 if gated else 1)


def _whole(name: str, module: str, leaf: str) -> Cut:
    """Return the split of a tensor that all ranks hold whole, such as a norm, the router or expert
    counters. Raise Unsupported if the name is not the name of such a tensor.
    """
    known = "norm" in module or leaf.startswith("layer_norm_") or module in _WHOLE
    if not known:
        raise _unknown(name, "is not known")
    return Cut(None)


def _down(
    name: str, module: str, shape: tuple[int, ...], ranks: int, args: Mapping[str, Any]
) -> Cut:
    """Return the split of a down projection weight of latent attention, according to its number of
    rows: Megatron's own layers split it, and Transformer Engine's layers hold it whole on each
    rank.
    """
    sizes = ("q_lora_rank",) if "linear_q_" in name else ("kv_lora_rank", "qk_pos_emb_head_dim")
    counts = [args.get(size) for size in sizes]
    rows = sum(count for count in counts if type(count) is int)
    if len(shape) > 0 and all(type(count) is int for count in counts):
        if shape[0] == rows:
            return Cut(None)
        if shape[0] * ranks == rows:
            return Cut(0)
    raise _unknown(name, f"is not known: a rank has {shape} of it, but {module} has {rows} rows")


def _check_groups(name: str, ranks: int, args: Mapping[str, Any]) -> None:
    groups = args.get("num_query_groups")
    if args.get("group_query_attention") is True and type(groups) is int and groups < ranks:
        raise _unknown(name, f"is not known for {groups} query groups, fewer than the ranks")


def _unknown(name: str, why: str) -> Unsupported:
    return Unsupported(f"how {name} is split among tensor-parallel ranks {why}")
