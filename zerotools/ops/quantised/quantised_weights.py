"""The quantised weights of a checkpoint, and their faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile, Unsupported, ZerotoolsError
from zerotools.core.scaled_cast import ScaledCast, Scheme
from zerotools.ops.quantised.quantisation_config import QuantisationConfig


@dataclass(frozen=True)
class QuantisedWeight:
    """A weight that is stored as a payload and scales.

    Attributes:
        kind: a description ("fp8 blocks 128x128").
        parts: the keys of the tensors that the weight is computed from, the payload first.
        extra_keys: other tensors that belong to the weight but are not needed to compute it.
    """

    key: Key
    kind: str
    tensor: ScaledCast
    parts: tuple[Key, ...]
    extra_keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class UnprovedScales:
    """A payload and its scales, with several possible block sizes. `fits` is a sentence that names
    these sizes. `missing` names the information that would leave one size."""

    fits: str
    missing: str
    parts: tuple[Key, ...]


def quantised_weight(
    key: Key,
    kind: str,
    shape: tuple[int, ...],
    scheme: Scheme,
    inputs: Mapping[str, tuple[Key, Tensor]],
    extra_keys: tuple[Key, ...] = (),
) -> QuantisedWeight:
    """Return a quantised weight with the given key and shape. `inputs` has the key and the tensor
    of each input."""
    tensors = {name: tensor for name, (_, tensor) in inputs.items()}
    cast = ScaledCast(FLOAT32, shape, (), scheme, tensors)
    return QuantisedWeight(key, kind, cast, tuple(part for part, _ in inputs.values()), extra_keys)


@dataclass(frozen=True)
class Quantisation:
    """The quantised weights of a checkpoint.

    Attributes:
        weights: the weights, keyed by the key of the dequantised weight.
        activations: the keys of scales of activations.
        faults: sentences on defects, each with the name of a tensor or None.
        unknown: a sentence about a setting or a block size that is not known; None if all are
            known.
        is_only_declared: True if the config declares quantised weights, but the checkpoint has
            none.
        place: the path of the checkpoint.
        unproved: payloads and scales that fit several blocks.
    """

    weights: Mapping[Key, QuantisedWeight] = field(default_factory=dict)
    activations: tuple[Key, ...] = ()
    config: QuantisationConfig | None = None
    faults: tuple[tuple[str, str | None], ...] = ()
    unknown: str | None = None
    is_only_declared: bool = False
    place: str = ""
    unproved: tuple[UnprovedScales, ...] = ()

    @property
    def is_there(self) -> bool:
        """True if a tensor of the checkpoint is quantised or seems to be, or if its config declares
        it."""
        return bool(self.weights or self.faults or self.unknown or self.config is not None)

    @property
    def together(self) -> Iterator[tuple[Key, ...]]:
        """The keys of the tensors of each quantised weight, the payload first. They have a meaning
        only together."""
        yield from (each.parts for each in self.weights.values())
        yield from (each.parts for each in self.unproved)

    @property
    def is_certain(self) -> bool:
        """True if the checkpoint certainly has quantised weights."""
        return bool(self.weights) or (self.config is not None and not self.is_only_declared)

    @property
    def damage(self) -> tuple[tuple[str, str | None], ...]:
        """The `faults` if the checkpoint certainly has quantised weights, else empty: an 8-bit
        tensor without scales may be no quantised weight."""
        return self.faults if self.is_certain else ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences about possible faults: the `faults` that are not `damage`, and `unknown`."""
        said = () if self.damage else tuple(message for message, _ in self.faults)
        return said if self.unknown is None else (*said, self.unknown)

    def kinds(self) -> dict[str, tuple[int, int]]:
        """Return the number of weights of each kind, and the number of their other tensors, mostly
        scales."""
        tensors = Counter(each.kind for each in self.weights.values())
        scales: Counter[str] = Counter()
        for each in self.weights.values():
            scales[each.kind] += len(each.parts) - 1 + len(each.extra_keys)
        return {kind: (count, scales[kind]) for kind, count in tensors.items()}

    def words(self) -> str:
        """Return a summary like "fp8 blocks 128x128, 210 tensors, with 210 tensors of scales"."""
        return "; ".join(
            f"{kind}, {count_text(tensors, 'tensor')}, with {count_text(scales, 'tensor')} of "
            "scales"
            for kind, (tensors, scales) in self.kinds().items()
        )

    def error(self) -> ZerotoolsError | None:
        """Return the reason why the values of the quantised weights cannot be computed, or None."""
        if self.unknown is not None:
            return Unsupported(self.unknown)
        if self.faults:
            more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
            message = self.faults[0][0]
            where = "" if self.place in message else f"{self.place}: "
            return BadFile(f"{where}{message}{more}")
        return None
