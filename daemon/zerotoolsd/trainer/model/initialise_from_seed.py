"""Computes initial weights from the seed and the names of modules. They are the same for any number
of ranks.

Every rank goes through the meta model, one block at a time (or one module outside the blocks). It
gives the block memory on the CPU, and runs the model's initialisation on each module of the block,
with random numbers seeded by (seed, name of the module). It keeps its own shard of the values and
frees the rest. So a rank never holds more than one block in addition to its shards. Buffers that
checkpoints do not contain get their values in the same way.

The memory is first filled with NaN, to detect tensors that the initialisation leaves out.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from zerotools.core.errors import Unsupported
from zerotoolsd.trainer.allocate_tensors import START, MemoryTier
from zerotoolsd.trainer.model.add_lora_adapters import base_module, init_adapter, is_adapter
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.model.sharding import local_part


def seed_from(*parts: object) -> int:
    """Return a 63-bit seed that depends only on `parts`. It is the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def initialise_weights(
    parameters: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor],
    meta_model: MetaModel,
    seed: int,
    host: MemoryTier,
    loaded: Container[str] = (),
) -> None:
    """Fill `parameters` and `buffers`, keyed by name, with the initial values of the model.

    Parameters of the model that are not in `parameters` are not initialised, because a file has
    their values. The buffers in `loaded` are not initialised either. `host` provides temporary
    memory.

    Raises:
        Unsupported: the model's initialisation leaves a tensor without a value.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for prefix, module in modules_to_initialise(meta_model):
            names = (name for name, _ in module.named_parameters(prefix))
            wanted = not parameters.keys().isdisjoint(names)
            if wanted or next(module.buffers(), None) is not None:
                _fill(parameters, buffers, meta_model, seed, host, prefix, loaded)


def _fill(
    parameters: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor],
    meta_model: MetaModel,
    seed: int,
    host: MemoryTier,
    prefix: str,
    loaded: Container[str],
) -> None:
    """Fill the tensors of the unit (block or module) `prefix`.

    When this function returns, the memory of the unit is free.
    """

    def is_needed(name: str) -> bool:
        return name in parameters or (name in buffers and name not in loaded)

    unit = with_values(meta_model, prefix, seed, host, is_needed)
    for name, value in unit.named_parameters(prefix):
        if name in parameters:
            _keep(parameters[name], value)
    for name, value in unit.named_buffers(prefix):
        buffers[name].copy_(value)


def with_values(
    meta_model: MetaModel,
    prefix: str,
    seed: int,
    host: MemoryTier,
    is_needed: Callable[[str], bool],
) -> nn.Module:
    """Return the unit (block or module) `prefix` with memory and its initial values.

    Tensors for which `is_needed` returns False may have no values. The caller must save the state
    of the random number generators, and disable gradients.

    Raises:
        Unsupported: the model's initialisation leaves a tensor without a value.
    """
    unit = with_memory(meta_model, prefix, host)
    _run_rule(meta_model.model, prefix, unit, seed)
    if any(_unset(prefix, unit, is_needed)):
        _run_rules_above(meta_model.model, prefix, unit)
    for name in _unset(prefix, unit, is_needed):
        raise Unsupported(
            f"the model's initialisation sets no value for {name} on the meta device: "
            "train from a directory with weights (model.path)"
        )
    return unit


def _unset(prefix: str, unit: nn.Module, is_needed: Callable[[str], bool]) -> Iterator[str]:
    for name, value in [*unit.named_parameters(prefix), *unit.named_buffers(prefix)]:
        if is_needed(name) and value.is_floating_point() and bool(torch.isnan(value).any()):
            yield name


def modules_to_initialise(meta_model: MetaModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) of each block, and of each module outside the blocks that has its own
    tensors."""
    inside: str | None = None
    for name, module in meta_model.model.named_modules():
        if inside is not None and name.startswith(inside):
            continue
        if name in meta_model.blocks:
            inside = f"{name}."
            yield name, module
        elif _own_names(name, module) - set(meta_model.aliases):
            yield name, _alone(module)


def _alone(module: nn.Module) -> nn.Module:
    """Return a copy of `module` without its children, with the same tensors."""
    alone = copy.copy(module)
    alone._parameters = dict(module._parameters)
    alone._buffers = dict(module._buffers)
    alone._modules = {}
    return alone


def with_memory(meta_model: MetaModel, prefix: str, host: MemoryTier) -> nn.Module:
    """Return the unit (block or module) `prefix` with memory that is not initialised."""
    module = meta_model.model.get_submodule(prefix)
    if prefix not in meta_model.blocks:
        alone = _alone(module)
        _allocate_tensors(alone, host)
        return alone
    block = copy.deepcopy(module)
    for part in block.modules():
        _allocate_tensors(part, host)
    return block


def _own_names(prefix: str, module: nn.Module) -> set[str]:
    names = {name for name, _ in module.named_parameters(prefix, recurse=False)}
    return names | {name for name, _ in module.named_buffers(prefix, recurse=False)}


def _allocate_tensors(module: nn.Module, host: MemoryTier) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            memory = host.empty(parameter.shape, parameter.dtype, START).fill_(torch.nan)
            module._parameters[name] = nn.Parameter(memory, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            empty = torch.nan if buffer.is_floating_point() else 0
            module._buffers[name] = host.empty(buffer.shape, buffer.dtype, START).fill_(empty)


def _run_rule(model: Any, prefix: str, unit: nn.Module, seed: int) -> None:
    """Run the model's initialisation on the modules of `unit`, children before parents, as
    `PreTrainedModel.initialize_weights` does.
    """
    for name, module in reversed(list(unit.named_modules(prefix=prefix))):
        torch.default_generator.manual_seed(seed_from("weights", seed, base_module(name)))
        if is_adapter(f"{name}."):
            init_adapter(f"{name}.", module)
        else:
            _owner(model, name)._init_weights(module)


def _run_rules_above(model: Any, prefix: str, unit: nn.Module) -> None:
    """Run the initialisation of the modules that contain `unit`, because some of them set values
    inside `unit`.

    The tensors of these modules outside `unit` have no memory, so nothing happens to such tensors.
    """
    names = prefix.split(".") if prefix else []
    inner = unit
    for depth in reversed(range(len(names))):
        outer = copy.copy(model.get_submodule(".".join(names[:depth])))
        outer._modules = {**outer._modules, names[depth]: inner}
        _owner(model, ".".join(names[:depth]))._init_weights(outer)
        inner = outer


def _owner(model: Any, name: str) -> Any:
    """Return the innermost model of transformers that contains the module `name` or is this module.

    A model may contain models with other configs and rules, such as that of images.
    """
    owner = part = model
    for each in name.split(".") if name else []:
        part = getattr(part, each)
        owner = part if isinstance(part, PreTrainedModel) else owner
    return owner


def _keep(parameter: torch.Tensor, value: torch.Tensor) -> None:
    if not isinstance(parameter, DTensor):
        parameter.copy_(value)
        return
    local, box = local_part(parameter)
    local.copy_(value[box])
