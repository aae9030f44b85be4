"""The statistics of each tensor of a checkpoint, in one pass over its data, and the tensors with
outliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.layer_names import in_order_of_numbers, place_of
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.io.numeric.value_statistics import StatisticsSum, ValueStatistics
from zerotools.ops.execution.plan_copies import prove_source
from zerotools.ops.execution.read_in_blocks import BLOCK_ELEMENTS, ElementBlock, share_blocks
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.quantised.quantised_weights import Quantisation


@dataclass(frozen=True)
class CheckpointStatistics:
    """The statistics of the stored values of each tensor.

    Attributes:
        unread: the tensors that cannot be read, each with the reason.
        stored_as: a description, such as "codes of fp8 blocks 128x128", of each stored tensor of a
            quantised weight. Its values are not those of the weight.
    """

    tensors: Mapping[Key, ValueStatistics]
    unread: Mapping[Key, str] = field(default_factory=dict)
    stored_as: Mapping[Key, str] = field(default_factory=dict)

    @cached_property
    def outliers(self) -> Mapping[Key, str]:
        """The tensors that differ from tensors of the same kind in other layers, each with the
        reason. Stored tensors of quantised weights are left out."""
        plain = {key: found for key, found in self.tensors.items() if key not in self.stored_as}
        return outliers_of(plain)

    def to_json(self) -> dict[Key, dict[str, Any]]:
        """Return the form of each tensor that docs/reference/inspect-json.md documents."""
        return {
            key: found.to_json()
            | {"stored_as": self.stored_as.get(key), "outlier": self.outliers.get(key)}
            for key, found in self.tensors.items()
        }


def statistics_of(
    checkpoint: Checkpoint,
    quantisation: Quantisation,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> CheckpointStatistics:
    """Read all tensors once, and return their statistics. Tensors that cannot be read are in
    `unread`.

    `on_bytes` is called with the number of bytes that were read since its last call. These numbers
    add up to the size of the complete tensors.

    Raises:
        BadFile: a file changed while it was read.
    """
    unread = dict[Key, str]()
    growing = dict[Key, _StatisticsInProgress]()
    for key, tensor in checkpoint.tensors.items():
        try:
            prove_source(key, tensor, checkpoint)
        except BadFile as error:
            unread[key] = str(error)
        else:
            growing[key] = _StatisticsInProgress(tensor)
    sources = Sources(checkpoint.stamps)
    done = {key: each.finished() for key, each in growing.items() if not each.left}
    budget = budget.reading(checkpoint.root)
    for block, found in share_blocks(checkpoint, growing, budget, _of_block, sources):
        on_bytes(block.nbytes)
        if isinstance(found, str):
            unread.setdefault(block.key, found)
            continue
        each = growing[block.key]
        each.add(block.number, found)
        if not each.left:
            done[block.key] = each.finished()
    sources.check()
    return CheckpointStatistics(
        {key: done[key] for key in checkpoint.tensors if key in done and key not in unread},
        {key: unread[key] for key in checkpoint.tensors if key in unread},
        dict(_stored_as(quantisation)),
    )


def _of_block(block: ElementBlock, parts: Iterator[Array], _: Scratch) -> StatisticsSum | str:
    """Return the statistics of a block, or the reason why it cannot be read."""
    total, element = StatisticsSum(), numpy_dtype(block.dtype)
    try:
        for raw in parts:
            total.add(raw.view(element))
    except BadFile as error:
        return str(error)
    return total


class _StatisticsInProgress:
    """The statistics of a tensor while its blocks are read. Blocks are added in order, because sums
    of floating-point numbers depend on the order."""

    def __init__(self, tensor: Tensor) -> None:
        self.left = -(-tensor.numel // BLOCK_ELEMENTS)
        self._total = StatisticsSum()
        self._next = 0
        self._waiting: dict[int, StatisticsSum] = {}

    def add(self, number: int, found: StatisticsSum) -> None:
        self._waiting[number] = found
        while (following := self._waiting.pop(self._next, None)) is not None:
            self._total.merge(following)
            self._next += 1
            self.left -= 1

    def finished(self) -> ValueStatistics:
        return self._total.finished()


def _stored_as(quantisation: Quantisation) -> Iterator[tuple[Key, str]]:
    for weight in quantisation.weights.values():
        payload, *others = weight.parts
        yield payload, f"codes of {weight.kind}"
        yield from ((key, f"scales of {weight.kind}") for key in (*others, *weight.extra_keys))


FEWEST_LAYERS = 4
"""With fewer layers than this, no tensor counts as an outlier because of its size."""
LEAST_OCTAVES = 1.0
"""The root mean square of an outlier differs from the median by a factor of more than 2 to the
power of this number.
"""
LEAST_DEVIATIONS = 5.0
"""An outlier also differs by more than this number of standard deviations of the logarithm (1.4826
times the median absolute deviation, as for a normal distribution)."""
_PER_DEVIATION = 1.4826


def outliers_of(statistics: Mapping[Key, ValueStatistics]) -> dict[Key, str]:
    """Return the tensors that differ from tensors of the same kind in other layers, each with the
    reason. Layers are in the order of their numbers.

    A tensor differs if it has NaN or infinite values, or if its root mean square is far from the
    median of all numbered layers' tensors of the same kind and role.
    """
    groups: dict[tuple[str, str], dict[Key, ValueStatistics]] = {}
    for key, found in statistics.items():
        place = place_of(key.name)
        if place.is_numbered:
            groups.setdefault((place.kind, key.role), {})[key] = found
    far = {key: why for group in groups.values() for key, why in _far(group)}
    odd = {
        key: f"{found.nans} NaN and {found.infinities} infinite values"
        for key, found in statistics.items()
        if found.nans or found.infinities
    }
    said = odd | {key: f"{odd[key]}; {why}" if key in odd else why for key, why in far.items()}
    return {key: said[key] for key in in_order_of_numbers([k for k in statistics if k in said])}


def _far(group: Mapping[Key, ValueStatistics]) -> Iterator[tuple[Key, str]]:
    sizes = {key: found.rms for key, found in group.items()}
    known = {key: size for key, size in sizes.items() if size is not None and math.isfinite(size)}
    layers = len({place_of(key.name).layer for key in known})
    usual = median(known.values()) if known else 0.0
    if layers < FEWEST_LAYERS or usual == 0:
        return
    octaves = {key: math.log2(size / usual) for key, size in known.items() if size}
    spread = _PER_DEVIATION * median(abs(each) for each in octaves.values())
    most = max(LEAST_OCTAVES, LEAST_DEVIATIONS * spread)
    for key, size in known.items():
        if not size:
            yield key, f"all values are 0, and the median of {layers} layers is {usual:.3g}"
        elif abs(octaves[key]) > most:
            yield (
                key,
                f"root mean square {size:.3g}, which is {size / usual:.3g} times the median of "
                f"{layers} layers",
            )
