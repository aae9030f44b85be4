"""Find tensors with values that differ much from the values of the same kind of tensor in other
layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median

from zerotools.core.checkpoint import Key
from zerotools.core.layer_names import in_order_of_numbers, place_of
from zerotools.io.numeric.value_statistics import ValueStatistics

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
