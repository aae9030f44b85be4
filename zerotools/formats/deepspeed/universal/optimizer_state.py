"""Read `zero/optimizer_state.pt` of a universal checkpoint: param groups, loss scaler, counters.

The file has one of three forms:

- from `ds_to_universal` of stages 1 and 2: group i has the parameters of `param_shapes[i]`;
- from `ds_to_universal` of stage 3: a copy of rank 0's whole optimizer file, in which a group lists
  its sub-groups;
- from `lay_out_universal`: `param_shapes` has the groups, and a key of the file has the order of
  their parameters.

Source: DeepSpeed `checkpoint/ds_to_universal.py`, `_save_optimizer_state`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Key, Problem, Tensor
from zerotools.core.training_state import ParamGroup
from zerotools.formats.deepspeed.partitioning.flat_groups import round_robin_order
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import ROUND_ROBIN, zero_optimization
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.tag_file_names import ZERO
from zerotools.formats.deepspeed.schema.typed_fields import integer_of
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor

OPTIMIZER_STATE = f"{ZERO}/optimizer_state.pt"
ORDER, OPTIMIZERS, UNKNOWN = "param_shapes_order", "optimizer", "unknown"


@dataclass(frozen=True)
class UniversalState:
    """The content of `zero/optimizer_state.pt`.

    If the file does not exist, `file` is None and `tree` is empty. `shapes` has the parameter names
    from the model file's `param_shapes`, one tuple for each param group or, at stage 3, for each
    sub-group.
    """

    file: TorchFile | None
    tree: Mapping[str, Any]
    groups: tuple[ParamGroup, ...]
    shapes: tuple[tuple[str, ...], ...]

    def numbers(self) -> Iterator[tuple[Key, Tensor | int | float]]:
        """Yield (key, number) for each parameter of a sub-group and each number, such as `step`,
        that a stage-3 file stores for the sub-group.
        """
        inner = self.tree.get(state_dict_keys.STATE_DICT)
        states = inner.get(state_dict_keys.STATE) if isinstance(inner, Mapping) else None
        if self.file is None or not isinstance(states, Mapping) or is_ours(self.tree):
            return
        for number, state in states.items():
            names = self.shapes[number] if number in range(len(self.shapes)) else ()
            for role, value in state.items() if isinstance(state, Mapping) else ():
                stored = as_tensor(value)
                if stored is not None and stored.shape == ():
                    tensor = self.file.tensor(stored)
                    yield from ((Key(name, role), tensor) for name in names)
                elif isinstance(value, int | float):
                    yield from ((Key(name, role), value) for name in names)


def is_ours(tree: Mapping[str, Any]) -> bool:
    """Return whether `lay_out_universal` wrote the file."""
    return tree.get(ORDER) in (OPTIMIZERS, UNKNOWN)


def parse_state(directory: Path, model: ModelStates) -> UniversalState:
    """Return the content of `zero/optimizer_state.pt`, for the parameters that the model file
    lists.

    Raises:
        BadFile: the file is damaged.
    """
    shapes = tuple(tuple(group) for group in model.groups or ())
    if not (directory / OPTIMIZER_STATE).is_file():
        return UniversalState(None, {}, (), shapes)
    file = TorchFile.open(directory, OPTIMIZER_STATE)
    tree = file.tree if isinstance(file.tree, Mapping) else {}
    saved = tree.get(state_dict_keys.PARAM_GROUPS)
    groups = [group for group in saved or () if isinstance(group, Mapping)]
    named = _named(tree, groups, shapes, model)
    return UniversalState(
        file,
        tree,
        tuple(
            ParamGroup(names, state_dict_keys.options_of(group))
            for names, group in zip(named, groups, strict=False)
        ),
        shapes,
    )


def _named(
    tree: Mapping[str, Any],
    groups: list[Mapping[str, Any]],
    shapes: tuple[tuple[str, ...], ...],
    model: ModelStates,
) -> list[tuple[str, ...]]:
    if is_ours(tree):
        return list(shapes)
    if integer_of(tree.get(state_dict_keys.ZERO_STAGE)) == 3:
        return [_joined(group, shapes) for group in groups]
    if not _is_round_robin(tree, model):
        return list(shapes)
    ranks = model.data_parallel_size or 1
    return [
        tuple(
            name
            for _, name in sorted(zip(round_robin_order(len(names), ranks), names, strict=True))
        )
        for names in shapes
    ]


def _joined(group: Mapping[str, Any], shapes: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    members = [
        number for number in state_dict_keys.numbers_of(group) if number in range(len(shapes))
    ]
    return tuple(name for number in members for name in shapes[number])


def _is_round_robin(tree: Mapping[str, Any], model: ModelStates) -> bool:
    """Return whether a run of stage 1 or 2 uses round robin. BF16_Optimizer, which has no
    `zero_stage`, ignores the option."""
    is_flat = integer_of(tree.get(state_dict_keys.ZERO_STAGE)) in (1, 2)
    return is_flat and zero_optimization(model.ds_config).get(ROUND_ROBIN) is True


def misplaced_values(saved: UniversalState, model: ModelStates) -> Iterator[Problem]:
    """Yield a problem for each parameter with values that `ds_to_universal` may have stored under
    the name of another parameter.

    If the run used round robin, `ds_to_universal` wrongly assumes the optimizer's order. But with
    aligned parameters, DeepSpeed records their real positions, so the names are right.
    """
    aligned = saved.tree.get(state_dict_keys.ALIGNMENT_PADDINGS)
    if is_ours(saved.tree) or not _is_round_robin(saved.tree, model):
        return
    if isinstance(aligned, list) and any(isinstance(part, list) and any(part) for part in aligned):
        return
    ranks = model.data_parallel_size or 1
    for names in saved.shapes:
        if round_robin_order(len(names), ranks) == list(range(len(names))):
            continue
        for name in names:
            yield Problem(
                f"{model.file.root / ZERO / name} was made by ds_to_universal from a run with "
                f"{ROUND_ROBIN}, but ds_to_universal swaps the weights of such runs; convert the "
                "original checkpoint",
                f"{ZERO}/{name}/fp32.pt",
                name,
            )
