"""Layers that compute with this rank's part of their weights.

A cut weight is a DTensor over the tensor ranks, as FSDP2 expects it. Computation uses this rank's
plain tensor of it: torch's own operators do the work, and this module has the communication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from zerotoolsd.trainer.tensor_parallel.layer_cuts import (
    COLUMNS,
    GATHERED_COLUMNS,
    ROWS,
    SPLIT_ROWS,
    SUMMED,
    LayerCuts,
)
from zerotoolsd.trainer.tensor_parallel.whole_values import (
    counted_each,
    gathered,
    split,
    summed,
    taken,
)


def cut_layers(model: nn.Module, cuts: LayerCuts, mesh: DeviceMesh) -> None:
    """Cut the layers of `model` over the ranks of `mesh`, which has one dimension.

    The parameters are on the meta device.
    """
    for name, dimension in cuts.dimensions.items():
        above, _, last = name.rpartition(".")
        layer = model.get_submodule(above)
        layer._parameters[last] = _cut(layer.get_parameter(last), dimension, mesh)
    for name, cut in cuts.layers.items():
        layer = model.get_submodule(name)
        layer.forward = partial(_FORWARDS[cut], layer, mesh.get_group())


def _cut(parameter: nn.Parameter, dimension: int, mesh: DeviceMesh) -> nn.Parameter:
    shape = list(parameter.shape)
    shape[dimension] //= mesh.size()
    # Not a view, because FSDP needs contiguous tensors.
    own = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
    tensor = DTensor.from_local(
        own,
        mesh,
        [Shard(dimension)],
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad)


def _columns(layer: Any, group: Any, whole: torch.Tensor) -> torch.Tensor:
    return functional.linear(taken(whole, group), _local(layer.weight), _local(layer.bias))


def _gathered_columns(layer: Any, group: Any, whole: torch.Tensor) -> torch.Tensor:
    return gathered(_columns(layer, group, whole), group)


def _rows(layer: Any, group: Any, part: torch.Tensor) -> torch.Tensor:
    found = summed(functional.linear(part, _local(layer.weight)), group)
    return found if layer.bias is None else found + layer.bias


def _split_rows(layer: Any, group: Any, whole: torch.Tensor) -> torch.Tensor:
    return _rows(layer, group, split(whole, group))


def _with_summed_gradients(layer: Any, group: Any, *args: Any, **options: Any) -> Any:
    ranks = torch.distributed.get_world_size(group)
    own = dict(layer._parameters)
    layer._parameters.update({n: counted_each(p, ranks) for n, p in own.items() if p is not None})
    try:
        return type(layer).forward(layer, *args, **options)
    finally:
        layer._parameters.update(own)


_FORWARDS: Mapping[str, Callable[..., Any]] = {
    COLUMNS: _columns,
    GATHERED_COLUMNS: _gathered_columns,
    ROWS: _rows,
    SPLIT_ROWS: _split_rows,
    SUMMED: _with_summed_gradients,
}


def _local(weight: torch.Tensor | None) -> torch.Tensor | None:
    return weight.to_local() if isinstance(weight, DTensor) else weight
