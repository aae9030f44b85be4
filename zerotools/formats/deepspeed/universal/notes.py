"""Notes for users of a universal checkpoint on DeepSpeed's loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from zerotools.core.checkpoint import Key
from zerotools.core.training import TrainingState
from zerotools.formats.deepspeed.partitioning.flat_layout import partition_size
from zerotools.formats.deepspeed.partitioning.whole_parameters import uses_muon
from zerotools.formats.deepspeed.schema.ds_config import ROUND_ROBIN
from zerotools.formats.deepspeed.universal.contents import MOMENTS, STEP, UniversalContents
from zerotools.formats.deepspeed.universal.trees import common_options

_MANY_RANKS = 1024
_NATIVE = "a native checkpoint (zerotools reshard, or convert --to deepspeed) has it all"


def notes_of(
    contents: UniversalContents, training: TrainingState, stage: int | None, *, model_parallel: int
) -> tuple[str, ...]:
    """Return sentences, the most important first. `model_parallel` are the source's such ranks."""
    notes = ['the resuming run needs "checkpoint": {"load_universal": true} in its configuration']
    kinds = {"frozen weights": "param", "buffers": "buffer"}
    kept = [what for what, role in kinds.items() if any(key.role == role for key in contents.whole)]
    if kept:
        notes.append(
            f"DeepSpeed does not restore {' and '.join(kept)} from a universal checkpoint: the "
            f"resuming run must load them first; {_NATIVE}"
        )
    if model_parallel > 1:
        notes.append(
            f"the {model_parallel} model-parallel ranks are merged: the output has no division "
            "among tensor or pipeline ranks, so it is for a run without model parallelism"
        )
    if len(contents.groups) > 1:
        notes.append(
            f"the resuming run must have the same {len(contents.groups)} param groups in this order"
        )
    if contents.begun:
        names = list(dict.fromkeys(key.name for key in contents.begun))
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
        notes.append(f"{some}: no state yet; it is written as zeros, its initial value")
    is_muons = any(uses_muon(group.options) for group in training.groups)
    if is_muons:
        notes.append(
            "DeepSpeed 0.19.8 does not resume Muon from a universal checkpoint: stages 1 and 2 cut "
            "the momenta into partitions, and Muon takes them for whole matrices unless the "
            f"optimizer is offloaded; stage 3 looks for Adam's state; {_NATIVE}"
        )
    if stage != 3:
        notes += _of_zero12(contents, training)
    if stage in (None, 3) and not is_muons:
        notes += _of_stage_3(contents, training)
    if mixed := _other_types(contents):
        notes.append(f"DeepSpeed casts {', '.join(mixed)} to the type of the masters; {_NATIVE}")
    return tuple(notes)


def _of_zero12(contents: UniversalContents, training: TrainingState) -> Iterator[str]:
    """Yield notes on stages 1 and 2."""
    zero = (training.ds_config or {}).get("zero_optimization")
    if isinstance(zero, Mapping) and zero.get(ROUND_ROBIN) is True:
        yield (
            f"the resuming run must leave {ROUND_ROBIN} out, because with it DeepSpeed's loader "
            f"swaps weights; {_NATIVE}"
        )
    limits = {
        number: limit
        for number, group in enumerate(contents.groups)
        if group and (limit := max_ranks(group)) < _MANY_RANKS
    }
    if limits:
        number = min(limits, key=limits.__getitem__)
        yield (
            "at stages 1 and 2 DeepSpeed's loader fails on a rank without a part of a group: "
            f"group {number} is shared by at most {limits[number]} ranks; {_NATIVE}"
        )


def max_ranks(group: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of ranks up to which each has a part of a group, at stages 1 and 2."""
    total = sum(map(prod, group.values()))
    fits = (
        (ranks - 1) * partition_size(total, ranks) < total for ranks in range(1, _MANY_RANKS + 1)
    )
    return next((ranks for ranks, fit in enumerate(fits) if not fit), _MANY_RANKS)


def _of_stage_3(contents: UniversalContents, training: TrainingState) -> Iterator[str]:
    missing = sorted(set(MOMENTS) - contents.roles)
    if missing or not contents.numbers:
        lacks = ", ".join([*missing, *([] if contents.numbers else [STEP])])
        yield (
            "stage 3 does not load it: DeepSpeed's loader expects the state of Adam, and this has "
            f"no {lacks}; {_NATIVE}"
        )
        return
    if rest := sorted(contents.roles - set(MOMENTS)):
        yield (
            f"stage 3 does not load {', '.join(rest)}, so training does not continue correctly; "
            f"{_NATIVE}"
        )
    alike = common_options(training.groups)
    options = {key for group in training.groups for key in group.options}
    if differing := sorted(options - alike.keys()):
        yield (
            "stage 3 gives all groups the options of one, so those that differ between them "
            f"({', '.join(differing)}) keep the values that the resuming run sets"
        )
    steps = {value for group in contents.groups for value in contents.steps_of(group)}
    if len(steps) > 1:
        yield f"stage 3 sets every group to step {min(steps):g} of {sorted(steps)}; {_NATIVE}"
    is_tensor = any(number.dtype is not None for number in contents.numbers.values())
    if is_tensor and len(contents.groups) > 1:
        yield (
            "stage 3 shares one step tensor among all sub-groups, so after resuming a torch "
            f"optimizer counts several steps for each one; {_NATIVE}"
        )


def _other_types(contents: UniversalContents) -> list[str]:
    """Return kinds of state in another type than their master's."""
    found = {
        key.role
        for key, tensor in contents.states.items()
        if key.role != STEP and tensor.dtype != contents.states[Key(key.name, "param")].dtype
    }
    return sorted(found)
