"""Read the optimizer state of one rank for the tensors of this rank.

Without the distributed optimizer, the state of each parameter has a number, and each param group
lists its numbers. The numbers are in the order in which the model has the parameters that fit the
group (`training_state.fitting_groups`).

With the distributed optimizer, distrib_optim.pt has one flat buffer for each dtype of parameters.
The buffer holds the parameters of the model in reverse order, each beginning at a multiple of 64
elements. Its last parameter ends at `numel_unpadded`.

Numbered state is read only if all shapes agree, and a flat buffer only if it ends where its last
parameter ends.

Source: megatron/core/optimizer/optimizer.py, distrib_optimizer.py (`get_parameter_state_dp_zero`),
distributed/param_and_grad_buffer.py of 0.12 to 0.16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from zerotools.core.boxes import row_major_strides
from zerotools.core.dtypes import DType
from zerotools.formats.megatron.training_state import fitting_groups, groups_in
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor

_ALIGNED = 64
_FLAT_ROLES = ("param", "exp_avg", "exp_avg_sq")


class Local(NamedTuple):
    """A tensor of one rank: its `name` and `role` in the whole model, and the position of its
    elements in the file.
    """

    name: str
    role: str
    dtype: DType
    shape: tuple[int, ...]
    file: str
    offset: int
    strides: tuple[int, ...]


class Unproved(Exception):
    """The optimizer state does not fit the parameters of the rank; the message says why."""


def numbered_state(
    optimizers: Sequence[Mapping[Any, Any]],
    weights: Sequence[Local],
    file: TorchFile,
    args: Mapping[str, Any],
) -> list[Local]:
    """Return the state of an optimizer that numbers its parameters.

    Raises:
        Unproved: shapes or counts disagree.
    """
    groups = [(n, group) for n, each in enumerate(optimizers) for group in groups_in(each)]
    members: list[list[Local]] = [[] for _ in groups]
    for weight in weights:
        fits = list(fitting_groups(weight.name, weight.shape, [g for _, g in groups], args))
        if len(fits) != 1:
            raise Unproved(f"{weight.name} fits {len(fits)} param groups, but must fit one")
        members[fits[0]].append(weight)
    found: list[Local] = []
    within: dict[int, int] = {}
    for (number, group), params in zip(groups, members, strict=True):
        optimizer = optimizers[number]
        inner = optimizer.get("optimizer", optimizer)
        numbers, state = group.get("params"), inner.get("state")
        if not isinstance(numbers, list) or not isinstance(state, Mapping):
            return []
        if len(numbers) != len(params):
            raise Unproved(
                f"a param group has {len(numbers)} parameters, but {len(params)} weights of "
                "the rank belong to it"
            )
        for at, weight in zip(numbers, params, strict=True):
            kept = state.get(at) if type(at) is int else None
            found += _of_one(kept if isinstance(kept, Mapping) else {}, weight, file)
        at = within.get(number, 0)
        found += _masters(optimizer.get("fp32_from_fp16_params"), at, params, file)
        within[number] = at + 1
    return found


def _of_one(kept: Mapping[Any, Any], weight: Local, file: TorchFile) -> Iterator[Local]:
    for role, value in kept.items():
        stored = as_tensor(value)
        if stored is not None and isinstance(role, str) and role != "step":
            yield _local(weight, role, stored, file)


def _masters(masters: Any, at: int, params: list[Local], file: TorchFile) -> Iterator[Local]:
    of_group = masters[at] if isinstance(masters, list) and at < len(masters) else None
    if not isinstance(of_group, list):
        return
    halves = [weight for weight in params if weight.dtype.bits == 16]
    if len(of_group) != len(halves):
        raise Unproved(f"a group has {len(of_group)} masters, but {len(halves)} 16-bit weights")
    for value, weight in zip(of_group, halves, strict=True):
        stored = as_tensor(value)
        if stored is None:
            raise Unproved(f"the master of {weight.name} is not a tensor")
        yield _local(weight, "param", stored, file)


def _local(weight: Local, role: str, stored: StoredTensor, file: TorchFile) -> Local:
    if stored.shape != weight.shape:
        raise Unproved(
            f"{role} of {weight.name} has shape {stored.shape}, but the weight has {weight.shape}"
        )
    offset = file.first_byte(stored)
    return Local(weight.name, role, stored.dtype, stored.shape, file.name, offset, stored.strides)


def flat_state(tree: Any, weights: Sequence[Local], file: TorchFile) -> list[Local]:
    """Return the state in flat buffers.

    `tree` is the content of distrib_optim.pt: one dict, or two dicts, for the dense weights and for
    the experts.

    Raises:
        Unproved: a buffer does not end with its last parameter.
    """
    trees = tree if isinstance(tree, list) else [tree]
    found: list[Local] = []
    for number, each in enumerate(trees):
        own = [w for w in weights if len(trees) == 1 or (".experts." in w.name) == (number == 1)]
        if not isinstance(each, Mapping):
            continue
        if each.get("buckets_coalesced") is not True:
            raise Unproved(
                "its gradient buckets are stored separately (buckets_coalesced is not true)"
            )
        for index, buffers in each.items():
            if type(index) is int and isinstance(buffers, Mapping):
                for dtypes, buffer in buffers.items():
                    found += _in_buffer(dtypes, buffer, own, file)
    return found


def _in_buffer(
    dtypes: Any, buffer: Any, weights: Sequence[Local], file: TorchFile
) -> Iterator[Local]:
    if not isinstance(dtypes, tuple) or not dtypes or not isinstance(buffer, Mapping):
        raise Unproved("its buffers are not listed by dtype")
    own = [weight for weight in reversed(weights) if weight.dtype == dtypes[0]]
    places, end = [], 0
    for weight in own:
        begin = -(-end // _ALIGNED) * _ALIGNED
        places.append(begin)
        end = begin + prod(weight.shape)
    if buffer.get("numel_unpadded") != end:
        raise Unproved(
            f"a flat buffer ends at element {buffer.get('numel_unpadded')!s:.40}, but its "
            f"parameters end at {end}"
        )
    for role in _FLAT_ROLES:
        stored = as_tensor(buffer.get(role))
        if stored is None:
            continue
        if len(stored.shape) != 1 or stored.shape[0] < end or stored.strides != (1,):
            raise Unproved(
                f"the flat buffer of {role} has shape {stored.shape}, but its parameters end at "
                f"element {end}"
            )
        first = file.first_byte(stored)
        for weight, begin in zip(own, places, strict=True):
            if role == "param" and weight.dtype.bits > 16:
                continue  # a copy of the fp32 weight
            offset = first + begin * stored.dtype.itemsize
            strides = row_major_strides(weight.shape)
            yield Local(weight.name, role, stored.dtype, weight.shape, file.name, offset, strides)
