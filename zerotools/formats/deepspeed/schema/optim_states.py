"""The content of the `*_optim_states.pt` of all data-parallel ranks: masters and optimizer state.

There are three kinds of file. This module distinguishes them by their keys, never by a version:

- stage 3 (`fp32_flat_groups`): one padded partition per sub-group;
- stages 1 and 2 (`single_partition_of_fp32_groups`): one partition per param group, with most of
  its trailing padding cut off. The state is "rigid" (torch's state_dict, padded partitions) or
  "elastic" (a list with a dict for each group, partitions without padding);
- BF16_Optimizer: like stage 1, without `zero_stage`. Its masters keep their padding.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py`, `stage3.py`, `bf16_optimizer.py`: state_dict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.training_state import Scalar
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.model_states import Shapes, parse_groups
from zerotools.formats.deepspeed.schema.typed_fields import MOST_RANKS, Fields, integer_of
from zerotools.io.numeric.scalar_tensors import read_scalar
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor, attributes_of

BF16_OPTIMIZER = "BF16_Optimizer"
STAGE_1_AND_2 = "DeepSpeedZeroOptimizer"
STAGE_3 = "DeepSpeedZeroOptimizer_Stage3"
MASTERS = "param"
"""The role under which the masters of a group are listed among its state."""
_PLAIN_NAME = re.compile(r"[\w-]{1,200}")


@dataclass(frozen=True)
class OptimStates:
    """The content of one rank's optimizer file. Index i means param group i (stage 3: sub-group i).

    Attributes:
        masters: `masters[i]` is the partition of the masters.
        states: `states[i]` maps the name of a state (`exp_avg`) to its partition; empty if group i
            never made a step.
        scalars: `scalars[i]` holds values that are not partitions, such as `step`.
        param_groups: torch's param groups with their options; None for elastic state, which does
            not store them.
        swapped: for groups on NVMe, `swapped[i]` maps the name of a state (or `param`, for the
            masters) to the name of its swap file without the suffix.
    """

    file: TorchFile
    kind: str
    stage: int | None
    masters: Sequence[FlatPartition]
    states: Sequence[Mapping[str, FlatPartition]]
    scalars: Sequence[Mapping[str, Any]]
    param_groups: Sequence[Mapping[str, Any]] | None
    partition_count: Sequence[int] | int | None
    alignment_paddings: Sequence[Sequence[int]] | None
    is_rigid: bool
    fields: Fields
    groups: list[Shapes] | None
    swapped: Sequence[Mapping[str, str]] = ()


def parse_optim_states(file: TorchFile) -> OptimStates:
    """Check the whole optimizer file of one rank, and return its content.

    Raises:
        BadFile: a key is missing or has another type.
        Unsupported: the file is from legacy stage 1 (before 0.4.0), which interleaves partitions.
    """
    top = Fields(file.path, file.tree)
    fields = top.inside(state_dict_keys.STATE_DICT)
    if state_dict_keys.INTERLEAVED in fields:
        raise Unsupported(
            f"{file.path} has the interleaved partitions of DeepSpeed's first stage 1 (before "
            "0.4.0); load it with that version and save fp32 weights"
        )
    if state_dict_keys.SUB_GROUPS in fields:
        return _stage_3(file, top, fields)
    if state_dict_keys.PARTITIONS in fields:
        return _stage_1_or_2(file, top, fields)
    raise BadFile(
        f"{file.path} has neither the keys of ZeRO stages 1 and 2 nor those of stage 3; take "
        "another checkpoint"
    )


def _stage_3(file: TorchFile, top: Fields, fields: Fields) -> OptimStates:
    saved = fields.need(state_dict_keys.SUB_GROUPS, list)
    masters = _partitions(file, saved, state_dict_keys.SUB_GROUPS)
    inner = fields.inside(state_dict_keys.STATE_DICT)
    states, scalars = _rigid_states(file, inner, len(masters))
    return OptimStates(
        file,
        STAGE_3,
        integer_of(fields.tree.get(state_dict_keys.ZERO_STAGE)) or 3,
        masters,
        states,
        scalars,
        _param_groups(inner),
        _zero3_counts(fields, len(masters)),
        None,
        True,
        fields,
        parse_groups(top),
        _swapped(saved, inner),
    )


def _swapped(masters: Sequence[Any], inner: Fields) -> list[dict[str, str]]:
    """Return, for each sub-group, the names of its swap files, keyed by the name of the state.

    DeepSpeed stores the file name in the attribute `ds_id` of tensors without elements.
    """
    state = inner.maybe(state_dict_keys.STATE, dict) or {}
    found = []
    for number, master in enumerate(masters):
        every = {MASTERS: master, **state.get(number, {})}
        names = ((str(role), _swap_name(value)) for role, value in every.items())
        found.append({role: name for role, name in names if name is not None})
    return found


def _swap_name(value: Any) -> str | None:
    tensor, name = as_tensor(value), attributes_of(value).get(state_dict_keys.SWAP_NAME)
    if tensor is None or tensor.shape != (0,) or not isinstance(name, str):
        return None
    return name if _PLAIN_NAME.fullmatch(name) else None


def _stage_1_or_2(file: TorchFile, top: Fields, fields: Fields) -> OptimStates:
    masters = _partitions(
        file, fields.need(state_dict_keys.PARTITIONS, list), state_dict_keys.PARTITIONS
    )
    base = fields.tree.get(state_dict_keys.BASE_STATE)
    if isinstance(base, list):
        states, scalars = _elastic_states(file, base, len(masters))
        groups: Sequence[Mapping[str, Any]] | None = None
    else:
        inner = fields.inside(state_dict_keys.BASE_STATE)
        states, scalars = _rigid_states(file, inner, len(masters))
        groups = _param_groups(inner)
    stage = integer_of(fields.tree.get(state_dict_keys.ZERO_STAGE))
    return OptimStates(
        file,
        STAGE_1_AND_2 if state_dict_keys.ZERO_STAGE in fields else BF16_OPTIMIZER,
        stage,
        masters,
        states,
        scalars,
        groups,
        _partition_count(fields),
        _alignment_paddings(fields),
        not isinstance(base, list),
        fields,
        parse_groups(top),
    )


def _partition_count(fields: Fields) -> list[int] | int | None:
    """Return a list with the number of ranks that share each group, or one number for all groups.
    Return None if the file does not record these numbers.
    """
    count = fields.tree.get(state_dict_keys.PARTITION_COUNT)
    counts: list[Any] = count if isinstance(count, list) else [count]
    if not all(type(each) is int for each in counts):
        return None
    if count == 0:
        return None
    _counts(fields, state_dict_keys.PARTITION_COUNT, counts)
    return count


def _counts(fields: Fields, key: str, counts: list[Any]) -> list[int]:
    if not all(type(each) is int and 1 <= each <= MOST_RANKS for each in counts):
        raise fields.fault(
            f"its {key} is {counts!r:.40}, but the numbers must be from 1 to {MOST_RANKS}"
        )
    return counts


def _zero3_counts(fields: Fields, sub_groups: int) -> Sequence[int] | int | None:
    """Return a list with the number of ranks that share each sub-group if AutoEP has separate ranks
    for experts. Otherwise return one number for all sub-groups, or None if the file does not
    record it.
    """
    listed = fields.maybe(state_dict_keys.ZERO3_GROUPS, list)
    if listed is None:
        count = _partition_count(fields)
        return count if isinstance(count, int) else None
    counts = [
        entry.get(state_dict_keys.PARTITION_COUNT) for entry in listed if isinstance(entry, Mapping)
    ]
    if len(counts) != sub_groups:
        raise fields.fault(
            f"{state_dict_keys.ZERO3_GROUPS} lists {len(counts)} sub-groups, but the file has "
            f"{sub_groups}"
        )
    return _counts(fields, state_dict_keys.ZERO3_GROUPS, counts)


def _alignment_paddings(fields: Fields) -> list[list[int]] | None:
    """Return, for each group, the padding elements after each parameter; None if not recorded."""
    found = fields.maybe(state_dict_keys.ALIGNMENT_PADDINGS, list)
    for group in found or []:
        if not isinstance(group, list) or not all(type(n) is int and n >= 0 for n in group):
            raise fields.fault(f"its {state_dict_keys.ALIGNMENT_PADDINGS} are not lists of counts")
    return found


def _partitions(file: TorchFile, values: Sequence[Any], what: str) -> list[FlatPartition]:
    return [flat_partition_of(file, value, f"{what}[{i}]") for i, value in enumerate(values)]


def _rigid_states(
    file: TorchFile, inner: Fields, count: int
) -> tuple[list[dict[str, FlatPartition]], list[dict[str, Any]]]:
    """Return the partitions and the scalars of each group from torch's `state`. The keys of `state`
    are group numbers, because each group is one flat parameter for torch.
    """
    state = inner.maybe(state_dict_keys.STATE, dict) or {}
    unknown = [key for key in state if type(key) is not int or not 0 <= key < count]
    if unknown:
        raise inner.fault(
            f"it has optimizer state for group {unknown[0]!r}, but only {count} groups, counted "
            "from 0"
        )
    return _split(file, [state.get(i, {}) for i in range(count)])


def _elastic_states(
    file: TorchFile, base: Sequence[Any], count: int
) -> tuple[list[dict[str, FlatPartition]], list[dict[str, Any]]]:
    if len(base) != count:
        raise BadFile(
            f"{file.path} has the optimizer state of {len(base)} groups, but the masters of "
            f"{count} groups; copy or download it again"
        )
    return _split(file, base)


def _split(
    file: TorchFile, states: Sequence[Any]
) -> tuple[list[dict[str, FlatPartition]], list[dict[str, Any]]]:
    """Split the state of each group into partitions and scalars; return the list of each."""
    partitions: list[dict[str, FlatPartition]] = []
    scalars: list[dict[str, Any]] = []
    for number, state in enumerate(states):
        if not isinstance(state, Mapping):
            raise BadFile(
                f"{file.path}: the state of group {number} is not a dict; copy or download the "
                "file again"
            )
        flat, rest = {}, {}
        for name, value in state.items():
            tensor = as_tensor(value)
            if tensor is not None and len(tensor.shape) == 1:
                flat[str(name)] = flat_partition_of(file, value, f"{name} of group {number}")
            else:
                rest[str(name)] = value
        partitions.append(flat)
        scalars.append(rest)
    return partitions, scalars


def _param_groups(inner: Fields) -> list[Mapping[str, Any]]:
    groups = inner.maybe(state_dict_keys.PARAM_GROUPS, list) or []
    if not all(isinstance(group, dict) for group in groups):
        raise inner.fault("its param_groups are not dicts")
    return groups


def first_of(optim_states: Sequence[OptimStates | None]) -> OptimStates:
    """Return the first optimizer file that exists. The files of all ranks are equal except for
    their partitions.
    """
    return next(optim for optim in optim_states if optim is not None)


def scalar_of(optim: OptimStates, value: Any) -> Scalar | None:
    """Return a number from an optimizer file, which may be stored as a 0-d tensor; None if `value`
    is not a number.
    """
    stored = as_tensor(value)
    if stored is not None:
        single = stored.shape == ()
        return read_scalar(optim.file.root, optim.file.tensor(stored)) if single else None
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return Scalar(value) if plain else None


def version_of(text: str) -> tuple[int, ...]:
    """Return the version of DeepSpeed in `text` as numbers, such as (0, 19, 8)."""
    parts = text.split("+")[0].split(".")[:3]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


@dataclass(frozen=True, slots=True)
class FlatPartition:
    """One rank's partition of a flat buffer: `numel` elements at byte `offset` of `file`."""

    file: str
    offset: int
    numel: int
    dtype: DType


def flat_partition_of(file: TorchFile, value: Any, what: str) -> FlatPartition:
    """Check that `value`, from the tree of `file`, is a contiguous 1-D tensor, and return it as one
    rank's partition. `what` names the value in messages.

    Raises:
        BadFile: the value is not a contiguous 1-D tensor.
    """
    tensor = as_tensor(value)
    if tensor is None or len(tensor.shape) != 1 or (tensor.strides != (1,) and tensor.shape[0] > 1):
        raise BadFile(f"{file.path}: {what} is not a flat tensor; copy or download the file again")
    return FlatPartition(file.name, file.first_byte(tensor), tensor.shape[0], tensor.dtype)
