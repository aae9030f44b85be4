"""The vectors of the output and the state beside them, whichever way they are cut.

A unit is what has one vector of each role on every rank: a param group at stages 1 and 2, a
sub-group at stage 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.core.checkpoint import Key, Tensor
from zerotools.formats.deepspeed.blueprint import Part
from zerotools.formats.deepspeed.geometry import Geometry
from zerotools.formats.deepspeed.output import Output
from zerotools.io.torchzip.tensors import as_tensor
from zerotools.io.torchzip.values import Storage, StoredTensor

Place = tuple[int, str]
"""The number of a unit, and a role."""


@dataclass(frozen=True)
class Unit:
    """`part` is one of those that its parameters come from, which are equal in everything else."""

    geometry: Geometry
    part: Part


@dataclass
class Scalars:
    """Tensors of no dimension, such as `step`, by place. `copies` are storages of the source by
    the key of their copy: where a group was split each part counts for itself, in place."""

    found: dict[Place, StoredTensor] = field(default_factory=dict)
    copies: dict[str, Storage] = field(default_factory=dict)


def scalars_of(units: Sequence[Unit]) -> Scalars:
    """The tensors of no dimension of all units, each in a storage of its own."""
    scalars, used = Scalars(), set[str]()
    for number, unit in enumerate(units):
        for role, value in (unit.part.state or {}).items():
            stored = as_tensor(value)
            if role in unit.part.dtypes or stored is None or stored.shape != ():
                continue
            if stored.storage.key in used:
                key = f"copy-{number}-{role}"
                scalars.copies[key] = stored.storage
                stored = replace(stored, storage=replace(stored.storage, key=key))
            used.add(stored.storage.key)
            scalars.found[number, role] = stored
    return scalars


def placed_scalars(
    units: Sequence[Unit], scalars: Scalars, output: Output, file: str
) -> Iterator[tuple[Key, Tensor]]:
    """Where the output has them; all ranks' files have the same."""
    for (number, role), stored in scalars.found.items():
        tensor = output.placed(file, stored)
        for name in units[number].geometry.shapes:
            yield Key(name, role), tensor


def state_of(
    units: Sequence[Unit], values: Mapping[Place, StoredTensor]
) -> dict[int, dict[str, Any]]:
    """torch's `state` by the number of the unit: tensors replaced, numbers as they are."""
    return {
        number: {role: values.get((number, role), value) for role, value in state.items()}
        for number, state in enumerate(unit.part.state for unit in units)
        if state is not None
    }
