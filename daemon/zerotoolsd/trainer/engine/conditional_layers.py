"""Handles layers that only some ranks compute: experts and dropped blocks.

Ranks reduce the gradients of a block together, with all tensors in one buffer. At stage 3 they also
gather the weights of a block together. If one rank leaves out a block or an expert, its buffers do
not match those of the other ranks. Then the ranks fail or wait forever; or, if the buffers have the
same size by chance, they add gradients of different parameters.

    layerdrop          each rank leaves out random blocks: refused for more than one rank
    separate experts   experts that are modules of their own (usually all experts are one tensor);
                       each rank computes those that its tokens use. Missing gradients are zeros,
                       and an expert without any token is not updated: `SeparateExperts`
    other cases        are detected by the gradients of a step: see `parameters_mark`
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from zerotools.core.errors import BadRequest, Unsupported
from zerotoolsd.trainer.rank.process_group import WorldGroup

_MARKS = 1 << 16
"""Number of different results of `parameters_mark`.

For a thousand ranks, the sum of the squares of these results is still exact in fp64.
"""


def check_same_layers_on_ranks(
    model: Any, world_size: int, engine: str, fsdp: type = FSDPModule
) -> None:
    """Check that all `world_size` ranks compute the same layers of `model`, or that the engine
    supports ranks that compute different experts. `fsdp` is the class of FSDP2's modules.

    Raises:
        BadRequest: the model leaves out random blocks.
        Unsupported: the engine, or this torch, does not support ranks that compute different
            experts.
    """
    if world_size == 1:
        return
    keys = sorted(set(_dropped_layers(model)))
    if keys:
        told = " and ".join(f"{key} = {getattr(model.config, key, '')}".strip() for key in keys)
        raise BadRequest(
            f"the model's config has {told}: each of the {world_size} ranks would skip "
            "different blocks, but ranks share the weights and gradients of blocks; set such "
            "keys to 0, or train on one rank"
        )
    if not separate_experts(model):
        return
    if engine == "torch" and not hasattr(fsdp, "set_reduce_scatter_unused_params"):
        raise Unsupported(
            f"the experts of a {model.config.model_type} model are separate modules, and torch "
            f"{torch.__version__} cannot reduce the gradients of experts that only some ranks "
            "use; upgrade torch to 2.13, or train on one rank"
        )
    if engine == "deepspeed":
        raise Unsupported(
            f"the experts of a {model.config.model_type} model are separate modules, and "
            "ranks with different experts would wait for one another in DeepSpeed; set engine "
            '= "torch", or train on one rank'
        )


def _dropped_layers(model: Any) -> Iterator[str]:
    """Yield the keys of the model's config that make its modules leave out random blocks."""
    for name, module in model.named_modules():
        rate = getattr(module, "layerdrop", None)
        if isinstance(rate, int | float) and rate > 0:
            own = [f"{part}_layerdrop" for part in ("encoder", "decoder") if part in name]
            yield next((key for key in own if hasattr(model.config, key)), "layerdrop")


class SeparateExperts:
    """Records which experts of `model` the tokens of this rank use.

    Only experts that are separate modules are recorded.
    """

    def __init__(self, model: nn.Module) -> None:
        self._experts = {
            f"{prefix}.{name}": expert
            for prefix, module in separate_experts(model).items()
            for name, expert in module.named_children()
        }
        self._used: dict[str, bool] = dict.fromkeys(self._experts, False)
        for name, expert in self._experts.items():
            expert.register_forward_hook(partial(self._record_use, name))

    def _record_use(self, name: str, module: nn.Module, *_: Any) -> None:
        self._used[name] = self._used[name] or torch.is_grad_enabled()

    def untaken(self, group: WorldGroup) -> list[str]:
        """Return the names of trained parameters of unused experts.

        An expert is unused if no token on any rank has used it since the last call. All ranks call
        it together.
        """
        if not self._used:
            return []
        totals = group.total([float(used) for used in self._used.values()])
        found = [
            f"{name}.{inner}"
            for (name, expert), total in zip(self._experts.items(), totals, strict=True)
            for inner, parameter in expert.named_parameters()
            if parameter.requires_grad and not total
        ]
        self._used = dict.fromkeys(self._used, False)
        return found


def separate_experts(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of `model` that contain experts as separate modules: name -> module."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleDict | nn.ModuleList)
        and len(module) > 1
        and "expert" in f"{name.rpartition('.')[2]} {type(module).__name__}".lower()
        and next(module.parameters(), None) is not None
    }


def parameters_mark(names: Iterable[str]) -> int:
    """Return a checksum of the parameter names `names`, below `_MARKS`."""
    return zlib.crc32("\n".join(names).encode()) % _MARKS


def check_parameters_marks(totals: Sequence[float], world_size: int, step: int) -> None:
    """Check that all ranks have gradients of the same parameters.

    Each rank has a value of `parameters_mark`. `totals` has the sum of these values over all ranks,
    and the sum of their squares. `step` counts from 0.

    Raises:
        Unsupported: the ranks have gradients of different parameters. It is raised on all ranks.
    """
    total, squares = totals
    if total * total != world_size * squares:
        raise Unsupported(
            f"in step {step + 1} the ranks have gradients of different parameters: some ranks "
            "skip parts of the model, and such gradients cannot be reduced together; train the "
            "model on one rank"
        )
