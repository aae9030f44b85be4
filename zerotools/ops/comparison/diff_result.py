"""The result of a comparison, with its verdict and its JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Key, Origin
from zerotools.core.dtypes import DType
from zerotools.core.layer_names import layers_in_order, place_of
from zerotools.io.numeric.compare_values import Distance, Extreme
from zerotools.ops.comparison.tolerance import Tolerance

SCHEMA = "zerotools.diff/1"

EQUAL, CAST, WITHIN, DIFFERS = "equal", "equal_after_cast", "within_tolerance", "differs"
SHAPE, DTYPE, UNREADABLE = "shape", "dtype", "unreadable"
ONLY_A, ONLY_B = "only_in_a", "only_in_b"
STATUSES = (EQUAL, CAST, WITHIN, DIFFERS, SHAPE, DTYPE, UNREADABLE, ONLY_A, ONLY_B)


@dataclass(frozen=True, slots=True)
class Described:
    """The properties of a tensor as it is stored in its checkpoint."""

    key: Key
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """The result of comparing one tensor, which may exist in only one of the checkpoints.

    Attributes:
        status: one of `STATUSES`.
        distance: the difference of the values; None if the bits are equal or the values were not
            compared.
        is_copy: one checkpoint has the fp32 master, and the other only the 16-bit weight. Such
            tensors can be equal only after a cast.
        message: the reason why the tensor cannot be read, else None.
    """

    name: str
    role: str
    status: str
    a: Described | None = None
    b: Described | None = None
    distance: Distance | None = None
    is_copy: bool = False
    message: str | None = None

    def is_difference(self, tolerance: Tolerance) -> bool:
        """True if this tensor makes the checkpoints differ."""
        if self.status == CAST:
            return not (tolerance.allows_cast or self.is_copy)
        return self.status not in (EQUAL, WITHIN)

    @property
    def where(self) -> tuple[int, ...] | None:
        """The index of the element that differs most; None if the values were not compared.

        This is the first element that is NaN or infinite in only one checkpoint. Otherwise it is
        the element with the largest absolute difference, or the first with other bits.
        """
        found = self.worst
        return None if found is None else index_of(found, self.shape)

    @property
    def worst(self) -> Extreme | None:
        """The element of `where`, with its values."""
        distance = self.distance
        if distance is None:
            return None
        largest = distance.max_abs
        if distance.first_unmatched is None and largest is not None and largest.value > 0:
            return largest
        return distance.first_unmatched or distance.first

    @property
    def differing(self) -> int:
        """The number of elements with different bits; 0 if the values were not compared."""
        return 0 if self.distance is None else self.distance.differing

    @property
    def max_abs(self) -> float | None:
        """The largest absolute difference; None if the values were not compared."""
        largest = None if self.distance is None else self.distance.max_abs
        return None if largest is None else largest.value

    @property
    def max_ulp(self) -> float | None:
        """The largest difference in ULPs (steps between neighbouring values of the dtype); None for
        integers, or if the values were not compared."""
        largest = None if self.distance is None else self.distance.max_ulp
        return None if largest is None else largest.value

    @property
    def relative_norm(self) -> float | None:
        """The norm of the difference, divided by the norm of the tensor in A."""
        return None if self.distance is None else self.distance.relative

    @property
    def shape(self) -> tuple[int, ...]:
        described = self.a or self.b
        return () if described is None else described.shape


def index_of(extreme: Extreme, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index in each dimension of a tensor of `shape`, for the element `extreme.place` of
    the flattened tensor."""
    left, found = extreme.place, []
    for size in reversed(shape):
        left, position = divmod(left, size)
        found.append(position)
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class RunDifference:
    """A value of the training, such as a step or a learning rate, that differs between the
    checkpoints.

    `params` is the number of parameters with this difference, for an option of param groups or a
    number of the optimizer state; else None.
    """

    what: str
    a: Any
    b: Any
    params: int | None = None


@dataclass(frozen=True)
class RunComparison:
    """The result of comparing the training values (steps, param groups, loss scaler) of two
    checkpoints.

    `only_a` and `only_b` are values that only one of the checkpoints records. They do not count as
    differences, because some formats record more than others.
    """

    differences: tuple[RunDifference, ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerChange:
    """The difference of all measured tensors of one role in one layer.

    Attributes:
        tensors: the number of these tensors.
        distance: the difference between the checkpoints, as if these tensors were one.
    """

    layer: str
    role: str
    tensors: int
    distance: Distance

    def to_json(self) -> dict[str, Any]:
        """Return the form that docs/reference/diff-json.md documents."""
        found = self.distance
        return {
            "layer": self.layer,
            "role": self.role,
            "tensors": self.tensors,
            "relative_norm": None if found.relative is None else number_json(found.relative),
            "cosine": found.cosine,
            "unchanged": found.unchanged,
        }


@dataclass(frozen=True)
class CheckpointDiff:
    """The result of `zerotools.diff`.

    Attributes:
        a, b: the origins of the checkpoints.
        tensors: the results for all compared tensors, and for tensors that only one checkpoint has.
        run: the comparison of the training values; None if they were not compared.
        different_models: a sentence if the checkpoints have no tensor with the same name and shape,
            else None.
        proposals: rules for `--rename`, each with the number of names that it would match.
        problems: problems of the checkpoints.
        notes: other sentences for the user.
        has_changes: True if equal tensors were measured too.
    """

    a: Origin
    b: Origin
    tolerance: Tolerance
    tensors: tuple[TensorDifference, ...] = field(repr=False)
    run: RunComparison | None = field(default=None, repr=False)
    different_models: str | None = None
    proposals: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    has_changes: bool = False

    @property
    def is_equal(self) -> bool:
        """True if all tensors are equal within the tolerance, and all training values are equal."""
        return not (self.different_models or self.differing or (self.run and self.run.differences))

    @property
    def differing(self) -> tuple[TensorDifference, ...]:
        """The tensors that make the checkpoints differ."""
        return tuple(each for each in self.tensors if each.is_difference(self.tolerance))

    @property
    def counts(self) -> dict[str, int]:
        """The number of tensors with each status, keyed by the names in `STATUSES`."""
        found = Counter(each.status for each in self.tensors)
        return {status: found[status] for status in STATUSES}

    def worst(self, most: int) -> tuple[TensorDifference, ...]:
        """Return at most `most` tensors that differ, the largest difference first.

        Tensors with NaN or infinity in only one checkpoint come first. The others are sorted by the
        relative norm of their difference.
        """
        measured = [each for each in self.differing if each.differing]
        return tuple(sorted(measured, key=_badness, reverse=True)[:most])

    @property
    def layers(self) -> tuple[LayerChange, ...]:
        """The change of each layer, for each role; empty if equal tensors were not measured."""
        if not self.has_changes:
            return ()
        sums: dict[tuple[str, str], tuple[int, Distance]] = {}
        for each in self.tensors:
            if each.distance is not None:
                place = place_of(each.name).layer, each.role
                count, total = sums.get(place, (0, Distance()))
                sums[place] = count + 1, total + each.distance
        order = {layer: n for n, layer in enumerate(layers_in_order(e.name for e in self.tensors))}
        roles = {role: n for n, role in enumerate(dict.fromkeys(e.role for e in self.tensors))}
        places = sorted(sums, key=lambda place: (roles[place[1]], order[place[0]]))
        return tuple(LayerChange(*place, *sums[place]) for place in places)

    def to_json(self) -> dict[str, Any]:
        """Return the form that docs/reference/diff-json.md documents."""
        run = self.run
        return {
            "schema": SCHEMA,
            "equal": self.is_equal,
            "different_models": self.different_models,
            "tolerance": self.tolerance.text,
            "a": _origin_json(self.a),
            "b": _origin_json(self.b),
            "counts": self.counts,
            "tensors": [
                _tensor_json(each, self.tolerance) for each in self.tensors if each.status != EQUAL
            ],
            "layers": [each.to_json() for each in self.layers] if self.has_changes else None,
            "run": None
            if run is None
            else {
                "differences": [
                    {"what": d.what, "a": d.a, "b": d.b, "params": d.params}
                    for d in run.differences
                ],
                "only_a": list(run.only_a),
                "only_b": list(run.only_b),
            },
            "rename_proposals": [
                {"rule": rule, "names": names} for rule, names in self.proposals.items()
            ],
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def _badness(each: TensorDifference) -> tuple[bool, float, float]:
    distance = each.distance
    assert distance is not None
    relative = distance.relative
    if relative is None:
        relative = math.inf if distance.difference.value else 0.0
    return distance.unmatched > 0, relative, float(distance.differing)


def _origin_json(origin: Origin) -> dict[str, Any]:
    return {
        "path": str(origin.path),
        "format": origin.format,
        "stage": origin.stage,
        "world_size": origin.world_size,
        "tag": origin.tag,
        "step": origin.step,
    }


def _tensor_json(each: TensorDifference, tolerance: Tolerance) -> dict[str, Any]:
    return {
        "name": each.name,
        "role": each.role,
        "status": each.status,
        "is_difference": each.is_difference(tolerance),
        "is_copy": each.is_copy,
        "a": _described_json(each.a),
        "b": _described_json(each.b),
        "distance": _distance_json(each),
        "message": each.message,
    }


def _described_json(described: Described | None) -> dict[str, Any] | None:
    if described is None:
        return None
    return {
        "name": described.key.name,
        "role": described.key.role,
        "dtype": described.dtype.name,
        "shape": list(described.shape),
    }


def _distance_json(each: TensorDifference) -> dict[str, Any] | None:
    distance, where = each.distance, each.where
    if distance is None:
        return None
    return {
        "elements": distance.elements,
        "differing": distance.differing,
        "outside": distance.outside,
        "unmatched": distance.unmatched,
        "both_nan": distance.both_nan,
        "max_ulp": None if distance.max_ulp is None else distance.max_ulp.value,
        "max_ulp_where": _where_json(distance.max_ulp, each.shape),
        "max_abs": None if distance.max_abs is None else number_json(distance.max_abs.value),
        "max_abs_where": _where_json(distance.max_abs, each.shape),
        "relative_norm": None if distance.relative is None else number_json(distance.relative),
        "cosine": distance.cosine,
        "where": None if where is None else list(where),
        "a": None if each.worst is None else number_json(each.worst.ours),
        "b": None if each.worst is None else number_json(each.worst.theirs),
    }


def _where_json(extreme: Extreme | None, shape: Sequence[int]) -> list[int] | None:
    return None if extreme is None else list(index_of(extreme, shape))


def number_json(value: complex) -> float | str:
    """Return a number as a JSON value; NaN, infinities and complex numbers become text."""
    if isinstance(value, complex) or not math.isfinite(value):
        return str(value)
    return value
