"""The truth of a live run: whole parameters, masters and moments, gathered from its ranks."""

import torch
import torch.distributed as dist

from .cases import Case
from .live import cut_rank, global_name

HALF = (torch.bfloat16, torch.float16)


def gather(case: Case, wrapped, optimizer) -> dict[str, torch.Tensor]:
    """`<name>|<role>`, names as in a model on one rank; collective."""
    model = wrapped.module
    mine = []
    states = {} if optimizer is None else _states(model, optimizer)
    for name, parameter in model.named_parameters():
        if case.tied and name == "output_layer.weight":
            continue
        known = global_name(case, model, name)
        at = cut_rank(name, parameter)
        facts = (
            known,
            at,
            getattr(parameter, "partition_dim", 0) if at is not None else 0,
            parameter.shape,
        )
        flat = parameter.detach().reshape(-1)
        role = "param16" if optimizer is not None and parameter.dtype in HALF else "param"
        mine.append((*facts, role, 0, flat))
        mine += [(*facts, *state) for state in states.get(parameter, ())]
    for name, buffer in model.named_buffers():
        if name in model.state_dict() and buffer.dtype.is_floating_point:
            flat = buffer.detach().reshape(-1)
            mine.append((global_name(case, model, name), None, 0, buffer.shape, "param", 0, flat))
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return assembled([piece for each in every for piece in each])


def _states(model, optimizer):
    """parameter -> (role, first element, flat values) of what this rank keeps."""
    found = {}
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        if one.optimizer is None:
            continue
        for parameter in model.parameters():
            if (kept := _kept(one, parameter)) is not None:
                found[parameter] = kept
    return found


def _kept(one, parameter):
    if hasattr(one, "model_param_group_index_map"):
        if parameter not in one.model_param_group_index_map:
            return None
        begin = one._get_model_param_range_map(parameter)["param"].start
        values = one._get_main_param_and_optimizer_states(parameter)
        roles = {role: values[role] for role in ("param", "exp_avg", "exp_avg_sq")}
        return [(role, begin, v.detach().reshape(-1).clone()) for role, v in roles.items()]
    master = parameter
    for halves, masters in zip(
        getattr(one, "float16_groups", ()),
        getattr(one, "fp32_from_float16_groups", ()),
        strict=True,
    ):
        for half, full in zip(halves, masters, strict=True):
            master = full if half is parameter else master
    state = one.optimizer.state.get(master)
    if not state:
        return None
    roles = {"exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}
    if master is not parameter:
        roles["param"] = master
    return [(role, 0, v.detach().reshape(-1).clone()) for role, v in roles.items()]


def assembled(pieces) -> dict[str, torch.Tensor]:
    """`<name>|<role>` out of (name, piece, axis of the pieces, shape of the piece, role, first
    element, flat values) of every rank."""
    locals_ = {}
    for name, at, dim, shape, role, begin, flat in pieces:
        one = locals_.setdefault((name, role), {}).setdefault(
            at, (dim, torch.full((shape.numel(),), float("nan"), dtype=flat.dtype), shape)
        )
        known = one[1][begin : begin + len(flat)]
        assert bool((known.isnan() | (known == flat)).all()), f"ranks differ in {name}"
        known.copy_(flat)
    found = {}
    for (name, role), parts in sorted(locals_.items()):
        assert not any(values.isnan().any() for _, values, _ in parts.values()), (name, role)
        shards = [
            parts[at][1].reshape(parts[at][2]) for at in sorted(parts, key=lambda at: at or 0)
        ]
        dim = next(iter(parts.values()))[0]
        found[f"{name}|{role}"] = _joined(name, shards, dim).contiguous()
    return found


def _joined(name, shards, dim):
    """Every rank has its share of the gate, then its share of the other half."""
    if name.endswith("linear_fc1.weight"):
        halves = [shard.chunk(2, dim) for shard in shards]
        return torch.cat([*(gate for gate, _ in halves), *(up for _, up in halves)], dim)
    return torch.cat(shards, dim)
