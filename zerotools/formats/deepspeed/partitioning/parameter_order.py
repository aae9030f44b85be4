"""The order of parameters in flat buffers, and how it follows from the number of ranks.

Under `round_robin_gradients` parameter i of a group goes to list i mod N, and the buffer is one
list after another. `param_shapes` is in that order. Only `ds_config` shows whether it was on; the
names in `param_slice_mappings`, which stay in the optimizer's order, must agree with it.

Source: DeepSpeed `runtime/zero/stage_1_and_2.py`: `_round_robin_reorder`, `_create_param_mapping`,
and the `param_padding` of `__init__`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod
from typing import Any

from zerotools.core.dtypes import DType
from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.partitioning.flat_groups import FlatGroup
from zerotools.formats.deepspeed.schema.ds_config import ROUND_ROBIN, zero_optimization
from zerotools.formats.deepspeed.schema.model_states import ModelStates, Shapes
from zerotools.formats.deepspeed.schema.optim_states import (
    STAGE_1_AND_2,
    OptimStates,
    version_of,
)
from zerotools.formats.deepspeed.schema.optimizer_tree import slice_mappings

_ROUND_ROBIN_AT_STAGE_1 = (0, 13)


def slots(count: int, ranks: int) -> list[int]:
    """Return the index of the parameter at each position of the buffer, under round robin."""
    return [i for first in range(ranks) for i in range(first, count, ranks)]


def is_round_robin(model: ModelStates, optim: OptimStates) -> bool:
    """Return whether the flat buffers are in round robin order; those of BF16_Optimizer never
    are."""
    zero = zero_optimization(model.ds_config)
    return optim.kind == STAGE_1_AND_2 and deals_in_turn(zero, optim.stage, model.version)


def deals_in_turn(zero: Mapping[str, Any], stage: int | None, version: str | None) -> bool:
    """Return whether a run with these settings deals its parameters to the ranks in turn. Stage 1
    of versions before 0.13 does not, even if its configuration asks for it."""
    if zero.get(ROUND_ROBIN) is not True:
        return False
    return stage != 1 or version is None or version_of(version) >= _ROUND_ROBIN_AT_STAGE_1


def optimizer_order(group: FlatGroup, *, round_robin: bool) -> list[str]:
    """Return the names of a group in the optimizer's order.

    Raises:
        Unsupported: `param_slice_mappings` has another order.
    """
    names = list(group.shapes)
    if round_robin:
        places = zip(slots(len(names), group.geometry.dp_size), names, strict=True)
        names = [name for _, name in sorted(places)]
    position = {name: i for i, name in enumerate(names)}
    for optim in group.optim_states:
        known = [position[name] for name in _mapped(optim, group.number) if name in position]
        if optim is not None and known != sorted(known):
            raise Unsupported(
                f"{optim.file.path}: ds_config has {ROUND_ROBIN} = {str(round_robin).lower()}, "
                f"but the parameters of group {group.number} are not in that order; load it with "
                "DeepSpeed, and save it again"
            )
    return names


def _mapped(optim: OptimStates | None, number: int) -> Sequence[str]:
    mappings = [] if optim is None else slice_mappings(optim.fields.tree)
    return list(mappings[number]) if number < len(mappings) else ()


def flat_order(names: Sequence[str], ranks: int, *, round_robin: bool) -> list[str]:
    """Return the order in the flat buffer of `ranks` ranks."""
    return [names[i] for i in slots(len(names), ranks)] if round_robin else list(names)


def alignment_of(precision: DType) -> int:
    """Return elements that `parameter_alignment` aligns to: 16 bytes of the model's type."""
    return 16 // gcd(16, precision.itemsize)


def paddings_of(shapes: Shapes, alignment: int) -> list[int]:
    """Return elements of padding behind each parameter: none behind the last."""
    return [-prod(shape) % alignment for shape in list(shapes.values())[:-1]] + [0] * bool(shapes)
