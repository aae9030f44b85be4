"""A check that the scales of quantised weights are meaningful: it finds the faults that
`consolidate --dtype` would refuse.

Scales are read first, and are few. A scale of 0 is right if its elements are 0 too. So the values
of a weight are computed only if one of its scales is odd.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from zerotools.core import quantisation_schemes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.quantisation_schemes import Scheme
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.gather import Scratch
from zerotools.io.numeric.numpy_dtypes import Array
from zerotools.ops.execution.fill import fill
from zerotools.ops.execution.plan import plan
from zerotools.ops.execution.tiles import Tile
from zerotools.ops.execution.workers import MemoryBudget, TileWorkers
from zerotools.ops.quantised.dequantise import dequantised
from zerotools.ops.quantised.quantisation import QuantisedWeight
from zerotools.ops.quantised.recognise import recognise
from zerotools.ops.verification.element_checks import parts_of

_SMALL = 2.0**-60
"""Products and quotients of two scales that are larger are not 0."""
_NAN_EXPONENT = 255
_NOWHERE = Path("nowhere")


def meaningless_scales(
    checkpoint: Checkpoint,
    sound: Collection[Key],
    is_own: Callable[[str], bool],
    budget: MemoryBudget,
) -> Iterator[tuple[Key, str]]:
    """Yield (payload, sentence) of quantised weights without values: only those with a payload name
    that `is_own`, and with `sound` parts. `inspect` reports faults of shapes and names.

    Raises:
        BadFile: a file is missing, truncated or unreadable.
    """
    try:
        found = recognise(checkpoint)
        whole = dequantised(checkpoint, found)
    except (BadFile, Unsupported):
        return
    asked = [
        (key, each)
        for key, each in found.weights.items()
        if is_own(each.parts[0].name) and all(part in sound for part in each.parts)
    ]
    for key in _with_odd_scales(checkpoint, asked, budget):
        try:
            _compute(whole, key, budget)
        except BadRequest:  # too little memory takes nothing from the checkpoint
            continue
        except BadFile as error:
            yield found.weights[key].parts[0], f"{checkpoint.root}: {error}"


def _with_odd_scales(
    checkpoint: Checkpoint, weights: Iterable[tuple[Key, QuantisedWeight]], budget: MemoryBudget
) -> list[Key]:
    """Return those with odd scales, in the order of the checkpoint."""
    ordered = list(weights)
    with OpenFiles(checkpoint.root) as opened, TileWorkers(budget) as workers:

        def work(number: int, _: Scratch) -> int | None:
            odd = _has_odd_scales(checkpoint, ordered[number][1], opened)
            return number if odd else None

        found = workers.share(iter(range(len(ordered))), work)
        return [ordered[number][0] for number in sorted(n for n in found if n is not None)]


def _has_odd_scales(checkpoint: Checkpoint, weight: QuantisedWeight, opened: OpenFiles) -> bool:
    names = dict(zip(weight.tensor.inputs, weight.parts, strict=True))
    return any(
        _is_odd(weight.tensor.scheme, name, part)
        for name in _factors(weight.tensor.scheme, weight.tensor.inputs)
        for part in parts_of(checkpoint, names[name], opened)
    )


def _factors(scheme: Scheme, inputs: Mapping[str, Tensor]) -> set[str]:
    """Return the inputs that elements are multiplied by."""
    indices = {quantisation_schemes.PAYLOAD}
    if isinstance(scheme, quantisation_schemes.CodedFours) and scheme.nested_block:
        indices.add(quantisation_schemes.SCALES)
    return inputs.keys() - indices


def _is_odd(scheme: Scheme, name: str, part: Array) -> bool:
    if (
        isinstance(scheme, quantisation_schemes.BlockScaled | quantisation_schemes.PackedFours)
        and scheme.is_exponent
    ):
        return bool((part.view(np.uint8) == _NAN_EXPONENT).any())
    sizes = np.abs(np.asarray(part, np.float32))
    if isinstance(
        scheme, quantisation_schemes.CodedFours
    ):  # a code has a 0, and so has a block of zeros
        return not np.isfinite(sizes).all()
    return not bool(((sizes > _SMALL) & (sizes < np.inf)).all())


def _compute(whole: Checkpoint, key: Key, budget: MemoryBudget) -> None:
    """Compute all values of a weight, and keep none."""
    tensor = whole.tensors[key]
    shape = tensor.shape
    made = {key: Tensor(tensor.dtype, shape, (Chunk(Box.whole(shape), "values", 0),))}
    target = Checkpoint(_NOWHERE, made, Origin("nowhere", _NOWHERE))

    def work(tile: Tile, scratch: Scratch) -> None:
        fill(opened, tile, scratch)

    with OpenFiles(whole.root) as opened, TileWorkers(budget) as workers:
        for _ in workers.each(plan(whole, target), work):
            pass
