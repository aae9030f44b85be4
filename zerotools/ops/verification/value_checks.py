"""Check the values of tensors: find NaN, infinities and negative values that a tensor of its role
cannot have.

Only attention masks may have infinities. Formats of weights store masks among the weights, and
`is_mask` finds them: a mask has 0 for visible positions and minus infinity for the others, or 1 and
infinity, so all its finite elements are equal.

The digest of a cast to a narrower dtype proves every bit of a tensor if this dtype can hold all
values of the tensor exactly (`is_exact_in`). For example, a bf16 digest proves a weight that was
frozen in bf16 and exported in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.scaled_cast import Scheme
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.numeric.compare_values import ValueCounts
from zerotools.io.numeric.dtype_casts import Array, as_type, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.fill_tile import fill_tile
from zerotools.ops.execution.plan_copies import plan
from zerotools.ops.execution.read_in_blocks import FlatValues
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers
from zerotools.ops.execution.tiles import Tile
from zerotools.ops.quantised.dequantise import dequantise_checkpoint
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.quantised.quantised_weights import QuantisedWeight
from zerotools.ops.verification.file_scan import NEVER_NEGATIVE

_PART_BYTES = 2**18
_WEIGHTS = ("param", "param16")


def is_mask(checkpoint: Checkpoint, key: Key) -> bool:
    """Return whether a tensor may be a mask: it has no NaN, and all its finite elements
    are equal."""
    known: np.float64 | None = None
    try:
        with OpenFiles(checkpoint.root) as opened:
            for part in parts_of(checkpoint, key, opened):
                found = part.astype(np.float64)
                finite = found[np.isfinite(found)]
                known = finite[0] if known is None and finite.size else known
                if np.isnan(found).any() or (finite != known).any():
                    return False
    except BadFile:  # another check reports it
        return False
    return True


def is_exact_in(checkpoint: Checkpoint, key: Key, narrow: DType) -> bool:
    """Return whether a cast to `narrow` and back changes no byte of a tensor.

    Raises:
        BadFile: the tensor is incomplete, or a file is missing or truncated.
    """
    dtype = checkpoint.tensors[key].dtype
    with OpenFiles(checkpoint.root) as opened:
        return all(
            np.array_equal(
                as_type(as_type(part, narrow), dtype).view(np.uint8), part.view(np.uint8)
            )
            for part in parts_of(checkpoint, key, opened)
        )


def odd_values(checkpoint: Checkpoint, key: Key, counts: ValueCounts) -> Iterator[str]:
    """Yield sentences about values that a tensor of the role of `key` cannot have. `counts` are the
    counts of such values."""
    path = checkpoint.origin.path
    if (counts.nans or counts.infinities) and key.role != "buffer":
        what = "weight" if key.role in _WEIGHTS else "optimizer state"
        yield (
            f"{path}: {key} holds {counts.nans} NaN and {counts.infinities} infinite values, and "
            f"no training can continue with this {what}; take an older checkpoint"
        )
    if counts.negatives and key.role in NEVER_NEGATIVE:
        yield (
            f"{path}: {key} holds {counts.negatives} values below zero, but a sum of squares is "
            "never negative: the tensor has changed since the optimizer saved it; copy or "
            "download the file again"
        )


def parts_of(checkpoint: Checkpoint, key: Key, opened: OpenFiles) -> Iterator[Array]:
    """Yield the elements of a tensor in order, part by part. Every part uses the same buffer.
    `opened` are the files of the checkpoint.

    Raises:
        BadFile: the tensor is incomplete, or a file is missing or truncated.
    """
    tensor = checkpoint.tensors[key]
    most = min(_PART_BYTES, max(1, tensor.nbytes))
    raw, buffer = np.empty(most, np.uint8), np.empty(_PART_BYTES, np.uint8)
    step = most // tensor.dtype.itemsize
    values = FlatValues(key, tensor, checkpoint)
    with opened.holding() as held:
        for begin in range(0, tensor.numel, step):
            end = min(begin + step, tensor.numel)
            part = raw[: (end - begin) * tensor.dtype.itemsize]
            values.read(held, begin, end, part, buffer)
            yield part.view(numpy_dtype(tensor.dtype))


# Find scales of quantised weights that cannot be used, so that `consolidate --dtype` would refuse
# the checkpoint.
#
# Scales are few and are read first. The elements of a weight are computed only if one of its scales
# is unusual. For example, a scale of 0 is valid if the weight's elements are 0 too.

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
    from zerotools.core.quantisation_schemes import PAYLOAD, SCALES, CodedFourBit

    indices = {PAYLOAD}
    if isinstance(scheme, CodedFourBit) and scheme.nested_block:
        indices.add(SCALES)
    return inputs.keys() - indices


def _is_odd(scheme: Scheme, name: str, part: Array) -> bool:
    from zerotools.core.quantisation_schemes import BlockScaled, CodedFourBit, PackedFourBit

    if isinstance(scheme, BlockScaled | PackedFourBit) and scheme.is_exponent:
        return bool((part.view(np.uint8) == _NAN_EXPONENT).any())
    sizes = np.abs(np.asarray(part, np.float32))
    if isinstance(scheme, CodedFourBit):  # a code has a 0, and so has a block of zeros
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
