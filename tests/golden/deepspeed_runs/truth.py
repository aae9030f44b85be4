"""What the live engine holds, gathered from all ranks without reading what it saved.

DeepSpeed's `safe_get_full_*` calls would pass moments through the type of the masters, and its
`safe_get_local_*` calls are not in versions before 0.14. The slices of stage 3 are where its
optimizer says. At stages 1 and 2 the place of a parameter is taken from
its address within the flat 16-bit buffer.
"""

from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

Owned = Iterator[tuple[nn.Parameter, str, Tensor]]


def gather_ranks(part: Tensor, group: Any = None) -> Tensor:
    """Concatenates equally long vectors of all ranks of a process group, in rank order."""
    own = part.detach().clone().contiguous().view(torch.uint8)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return torch.cat(parts).view(part.dtype)


def as_step(value: Any) -> Tensor:
    """A step count with its own type: float32 of torch, int64 for a python int."""
    return value.detach().clone() if isinstance(value, Tensor) else torch.tensor(value)


MUON = "momentum_buffer"


def muon_momenta(
    optimizer: Any, number: int, parameters: list[nn.Parameter], own: Tensor | None, group: Any
) -> Owned:
    """Stages 1 and 2: each rank has the momenta of all parameters that its partition touches, and
    those that two ranks have are equal."""
    mine: dict[int, Tensor] = {}
    at = 0
    for parameter in optimizer.params_in_partition[number] if own is not None else ():
        place = next(i for i, each in enumerate(parameters) if each is parameter)
        assert own is not None
        mine[place] = own[at : at + parameter.numel()].clone().reshape(parameter.shape)
        at += parameter.numel()
    if own is not None and at != own.numel():
        raise AssertionError(f"{own.numel()} momenta for parameters of {at} elements")
    found: list[dict[int, Tensor]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(found, mine, group=group)
    for place, parameter in enumerate(parameters):
        held = [there[place] for there in found if place in there]
        if any(not torch.equal(held[0], other) for other in held):
            raise AssertionError("the ranks' momenta disagree")
        if held:
            yield parameter, MUON, held[0]


def flat_state(engine: Any) -> Owned:
    """Stages 1 and 2 and BF16_Optimizer: (parameter, role, full tensor)."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_groups_flat_partition"):
        groups = optimizer.bf16_groups, optimizer.bf16_groups_flat
        partitions = optimizer.fp32_groups_flat_partition
    else:
        groups = optimizer.bit16_groups, optimizer.bit16_groups_flat
        partitions = optimizer.single_partition_of_fp32_groups
    ranks = optimizer.real_dp_process_group
    numbers = range(len(partitions))
    for number, parameters, flat, partition, group in zip(
        numbers, *groups, partitions, ranks, strict=True
    ):
        state = dict(optimizer.optimizer.state.get(partition, {}))
        if optimizer.optimizer.param_groups[number].get("use_muon"):
            yield from muon_momenta(optimizer, number, parameters, state.pop(MUON, None), group)
        # Sorted: DeepSpeed's universal loader fills the state in another order on each rank.
        for role, value in sorted({"param": partition, **state}.items()):
            if isinstance(value, Tensor) and value.shape == partition.shape:
                whole = gather_ranks(value, group)
                for parameter in parameters:
                    start = (parameter.data_ptr() - flat.data_ptr()) // flat.element_size()
                    piece = whole[start : start + parameter.numel()].clone()
                    yield parameter, role, piece.reshape(parameter.shape)
            else:
                for parameter in parameters:
                    yield parameter, role, as_step(value)


def join_slices(parameter: Any, part: Tensor) -> Tensor:
    """The whole tensor of a stage-3 parameter, from every rank's slice and padding."""
    ranks = getattr(parameter, "ds_zero_partition_process_group", None)  # AutoEP's experts have one
    return gather_ranks(part, ranks)[: parameter.ds_numel].clone().reshape(parameter.ds_shape)


def partitioned_state(engine: Any, parameters: list[nn.Parameter]) -> Owned:
    """Stage 3: (parameter, role, full tensor)."""
    optimizer = engine.optimizer
    for parameter in parameters:
        place = optimizer.grad_position[optimizer.get_param_id(parameter)]
        sub_group, start, count = map(int, place)
        flat = optimizer.fp32_partitioned_groups_flat[sub_group]
        is_swapped = not flat.numel()
        if is_swapped:
            optimizer.optimizer_swapper.swap_in_optimizer_state(parameter=flat)
        yield parameter, "param", join_slices(parameter, flat[start : start + count])
        for role, value in optimizer.optimizer.state.get(flat, {}).items():
            if isinstance(value, Tensor) and value.shape == flat.shape:
                yield parameter, role, join_slices(parameter, value[start : start + count])
            else:
                yield parameter, role, as_step(value)
        if is_swapped:
            optimizer.optimizer_swapper.release_swap_buffers(parameter=flat)


def replicated_state(engine: Any, parameters: list[nn.Parameter]) -> Owned:
    """No ZeRO: the wrapper of 16-bit runs keeps masters, otherwise the weights are the masters."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_groups"):
        weights = [p for group in optimizer.fp16_groups for p in group]
        masters = [p for group in optimizer.fp32_groups for p in group]
        inner = optimizer.optimizer
    else:
        weights = masters = parameters
        inner = optimizer
    for weight, master in zip(weights, masters, strict=True):
        yield weight, "param", master.detach().clone()
        for role, value in inner.state.get(master, {}).items():
            yield weight, role, as_step(value)


def owned_state(engine: Any, parameters: list[nn.Parameter]) -> Owned:
    if engine.zero_optimization_stage() == 3:
        return partitioned_state(engine, parameters)
    if hasattr(engine.optimizer, "real_dp_process_group"):
        return flat_state(engine)
    return replicated_state(engine, parameters)


def live_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter under its first name, whole, in the type the model computes in."""
    named = dict(model.named_parameters())
    with deepspeed.zero.GatheredParameters(list(named.values())):
        return {name: p.detach().clone() for name, p in named.items()}


def live_shapes(model: nn.Module) -> dict[str, list[int]]:
    """Full shape of every parameter under its first name, also where it is partitioned."""
    return {n: list(getattr(p, "ds_shape", p.shape)) for n, p in model.named_parameters()}


def aliases(model: nn.Module) -> dict[str, str]:
    """Other names of tied parameters -> the first name."""
    first: dict[int, str] = {}
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        canonical = first.setdefault(id(parameter), name)
        if canonical != name:
            found[name] = canonical
    return found


def gather_tensors(engine: Any) -> dict[str, Tensor]:
    """`<fqn>|<role>` -> tensor, on every rank.

    A master cast to the type of the model must be the live weight, bit for bit.
    """
    model = engine.module
    names = {id(p): name for name, p in model.named_parameters()}
    weights = live_weights(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    found = {
        f"{names[id(parameter)]}|{role}": value
        for parameter, role, value in owned_state(engine, trainable)
    }
    for name, weight in weights.items():
        master = found.setdefault(f"{name}|param", weight)
        if not torch.equal(master.to(weight.dtype), weight):
            raise AssertionError(f"{name}: the master differs from the live weight")
        if master is not weight and weight.dtype != torch.float32:
            found[f"{name}|param16"] = weight
    buffers = set(dict(model.named_buffers())) & set(model.state_dict())
    found |= {f"{n}|buffer": b.clone() for n, b in model.named_buffers() if n in buffers}
    return dict(sorted(found.items()))


def groups_of(engine: Any, named_groups: list[list[str]]) -> list[dict[str, Any]]:
    """Hyper-parameters of every optimizer group, with the names of its parameters."""
    plain = (bool, int, float, str, tuple, list)
    return [
        {
            "names": names,
            **{k: v for k, v in group.items() if k != "params" and isinstance(v, plain)},
        }
        for names, group in zip(named_groups, engine.optimizer.param_groups, strict=True)
    ]


def loss_scale(engine: Any) -> float:
    optimizer = engine.optimizer
    scaler = getattr(optimizer, "loss_scaler", None) or getattr(
        optimizer, "loss_scale_config", optimizer
    )
    return float(getattr(scaler, "cur_scale", 1.0))
