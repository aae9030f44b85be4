"""Builds the model for DeepSpeed. The model is complete on each rank; at stage 3 it is partitioned
while it is built.

Used as a context manager, `deepspeed.zero.Init` partitions parameters when a module creates them.
But a Hugging Face model sets the values of its parameters later. So this module applies `Init` to
parameters that already have values. One block at a time is filled with values, partitioned and
freed. A rank never holds more than one block in addition to its own parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import nn

from zerotools.jobs.jobfile_tables.deepspeed import precision_of, stage_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.trainer.allocate_tensors import TORCH_DTYPES, make_memory
from zerotoolsd.trainer.model.fill_shards import load_weights, persistent_buffers, values_by_rule
from zerotoolsd.trainer.model.initialise_from_seed import (
    initialise_weights,
    modules_to_initialise,
    with_memory,
    with_values,
)
from zerotoolsd.trainer.model.match_pretrained import Pretrained
from zerotoolsd.trainer.model.meta_model import MetaModel

ConfigMapping = Mapping[str, Any]


def make_model(
    deepspeed: Any,
    spec: JobSpec,
    config: ConfigMapping,
    meta_model: MetaModel,
    device: torch.device,
    pretrained: Pretrained | None,
    *,
    to_be_loaded: bool,
) -> Any:
    """Build the model with its initial weights: from `pretrained`, or from the seed if it is None.

    If `to_be_loaded` is True, a checkpoint will replace the weights, so they may have any values.
    Buffers always have their correct values.

    Raises:
        ZerotoolsError: the model cannot be initialised, or its weights cannot be read.
    """
    by_rule = values_by_rule(meta_model.model, pretrained, resumes=to_be_loaded)
    if stage_of(config) == 3:
        return _cut(deepspeed, spec, config, meta_model, device, pretrained, by_rule)
    model = copy.deepcopy(meta_model.model)
    _allocate(model, device)
    parameters, host = dict(model.named_parameters()), make_memory(device).host
    given = {name: p for name, p in parameters.items() if name in by_rule}
    buffers = dict(model.named_buffers())
    initialise_weights(given, buffers, meta_model, spec.seed, host, buffers.keys() - by_rule)
    if pretrained is not None:
        targets = {**parameters, **persistent_buffers(model)}
        load_weights(targets, meta_model.aliases, pretrained)
    return model


def _cut(
    deepspeed: Any,
    spec: JobSpec,
    config: ConfigMapping,
    meta_model: MetaModel,
    device: torch.device,
    pretrained: Pretrained | None,
    by_rule: Set[str],
) -> Any:
    cutter = deepspeed.zero.Init(module=nn.Module(), config_dict_or_path=dict(config))
    precision = precision_of(config)
    cutting = _Cutting(
        copy.deepcopy(meta_model.model),
        meta_model,
        device,
        None if precision == "fp32" else TORCH_DTYPES[precision],
        cutter._convert_to_zero_parameters,
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for prefix, unit in modules_to_initialise(meta_model):
            names = {name for name, _ in unit.named_parameters(prefix)}
            has_buffers = next(unit.buffers(), None) is not None
            needed = by_rule if has_buffers or names & by_rule else None
            cutting.fill(prefix, spec.seed, needed, pretrained)
    return cutting.model


class _Cutting:
    """Fills a copy of the meta model with values and partitions it, one unit (block) after the
    other.
    """

    def __init__(
        self,
        model: Any,
        meta_model: MetaModel,
        device: torch.device,
        kind: torch.dtype | None,
        cut: Callable[[list[nn.Parameter]], None],
    ) -> None:
        self.model = model
        self._meta_model = meta_model
        self._device = device
        self._kind = kind
        self._cut = cut
        self._host = make_memory(device).host
        # `tie_weights` left one parameter in several places: it is cut once, and set in all.
        self._places: dict[str, list[str]] = {}
        for name, _ in model.named_parameters(remove_duplicate=False):
            self._places.setdefault(meta_model.aliases.get(name, name), []).append(name)

    def fill(
        self, prefix: str, seed: int, by_rule: Set[str] | None, pretrained: Pretrained | None
    ) -> None:
        """Fill the tensors of the unit `prefix` with values, partition the unit, and free its
        unpartitioned memory.

        The tensors in `by_rule` are initialised from `seed`, and the others are read from
        `pretrained`. If `by_rule` is None, no tensor is initialised from the seed.
        """
        meta_model, host = self._meta_model, self._host
        if by_rule is None:
            unit = with_memory(meta_model, prefix, host)
        else:
            unit = with_values(meta_model, prefix, seed, host, by_rule.__contains__)
        targets = dict(unit.named_parameters(prefix))
        if pretrained is not None:
            kept = {_join(prefix, name): b for name, b in persistent_buffers(unit).items()}
            load_weights({**targets, **kept}, meta_model.aliases, pretrained)
        made = {name: self._parameter(value) for name, value in targets.items()}
        self._cut(list(made.values()))
        for name, parameter in made.items():
            for place in self._places[name]:
                module, last = _owner(self.model, place)
                setattr(module, last, parameter)
        for name, buffer in unit.named_buffers(prefix):
            module, last = _owner(self.model, name)
            module._buffers[last] = buffer.to(self._device)

    def _parameter(self, value: nn.Parameter) -> nn.Parameter:
        kind = self._kind if value.is_floating_point() else None
        return nn.Parameter(value.detach().to(self._device, kind), value.requires_grad)


def weight_groups(
    model: Any, decayed: frozenset[str], weight_decay: float | None
) -> list[dict[str, Any]]:
    """Return the parameter groups for DeepSpeed's optimizer. Each group also has the `names` of its
    parameters.

    The parameters in `decayed` are in a group with weight decay. If `weight_decay` is None or 0,
    there is only one group.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not weight_decay:
        return [_group(named, list(named))]
    with_decay = [name for name in named if name in decayed]
    others = [name for name in named if name not in decayed]
    groups = [
        {**_group(named, with_decay), "weight_decay": weight_decay},
        {**_group(named, others), "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def replace_buffers(model: Any, buffers: Mapping[str, torch.Tensor]) -> None:
    """Replace buffers of `model` by the tensors in `buffers`, which are keyed by the names of the
    buffers.
    """
    for name, buffer in buffers.items():
        module, last = _owner(model, name)
        module._buffers[last] = buffer


def whole_parameters(deepspeed: Any, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the whole tensor of each parameter and persistent buffer.

    All ranks must iterate together, because each tensor is gathered from all of them.
    """
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            yield name, parameter.detach()
    yield from persistent_buffers(model).items()


def _group(named: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {"params": [named[name] for name in names], "names": names}


def _allocate(model: nn.Module, device: torch.device) -> None:
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                memory = torch.empty_like(parameter, device=device)
                made[parameter] = nn.Parameter(memory, parameter.requires_grad)
            setattr(module, name, made[parameter])
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.empty_like(buffer, device=device)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _owner(model: Any, name: str) -> tuple[Any, str]:
    prefix, _, last = name.rpartition(".")
    return model.get_submodule(prefix), last
