"""Find scales of quantised weights that cannot be used, so that `consolidate --dtype` would refuse
the checkpoint.

Scales are few and are read first. The elements of a weight are computed only if one of its scales
is unusual. For example, a scale of 0 is valid if the weight's elements are 0 too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from zerotools.core import quantisation_schemes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.scaled_cast import Scheme
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.dtype_casts import Array
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.fill_tile import fill_tile
from zerotools.ops.execution.plan_copies import plan
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers
from zerotools.ops.execution.tiles import Tile
from zerotools.ops.quantised.dequantise import dequantise_checkpoint
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.quantised.quantised_weights import QuantisedWeight
from zerotools.ops.verification.value_checks import parts_of

_SMALL = 2.0**-60
"""If two scales are larger than this, their product and quotient are not 0."""
_NAN_EXPONENT = 255
_NOWHERE = Path("nowhere")


def meaningless_scales(
    checkpoint: Checkpoint,
    sound: Collection[Key],
    is_own: Callable[[str], bool],
    budget: MemoryBudget,
) -> Iterator[tuple[Key, str]]:
    """Yield the payload's key and a sentence for each quantised weight that cannot be dequantised.

    A weight is checked if `is_own` returns True for the name of its payload, and all its parts are
    in `sound`. Faults of shapes and names are left to `inspect`.

    Raises:
        BadFile: a file is missing, truncated or unreadable.
    """
    try:
        found = find_quantised(checkpoint)
        whole = dequantise_checkpoint(checkpoint, found)
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
    """Return the quantised weights with unusual scales, in the order of the checkpoint."""
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
    """Return the names of the inputs that are factors of the elements."""
    indices = {quantisation_schemes.PAYLOAD}
    if isinstance(scheme, quantisation_schemes.CodedFourBit) and scheme.nested_block:
        indices.add(quantisation_schemes.SCALES)
    return inputs.keys() - indices


def _is_odd(scheme: Scheme, name: str, part: Array) -> bool:
    if (
        isinstance(scheme, quantisation_schemes.BlockScaled | quantisation_schemes.PackedFourBit)
        and scheme.is_exponent
    ):
        return bool((part.view(np.uint8) == _NAN_EXPONENT).any())
    sizes = np.abs(np.asarray(part, np.float32))
    if isinstance(
        scheme, quantisation_schemes.CodedFourBit
    ):  # a code has a 0, and so has a block of zeros
        return not np.isfinite(sizes).all()
    return not bool(((sizes > _SMALL) & (sizes < np.inf)).all())


def _compute(whole: Checkpoint, key: Key, budget: MemoryBudget) -> None:
    """Compute all elements of a weight and discard them. Raise an error if that is not possible."""
    tensor = whole.tensors[key]
    shape = tensor.shape
    made = {key: Tensor(tensor.dtype, shape, (Chunk(Box.whole(shape), "values", 0),))}
    target = Checkpoint(_NOWHERE, made, Origin("nowhere", _NOWHERE))

    def work(tile: Tile, scratch: Scratch) -> None:
        fill_tile(opened, tile, scratch)

    with OpenFiles(whole.root) as opened, TileWorkers(budget) as workers:
        for _ in workers.each(plan(whole, target), work):
            pass
