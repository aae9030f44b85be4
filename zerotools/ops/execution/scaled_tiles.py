"""How large the tiles of scaled casts are: whole rows of blocks where those fit, so that no block
is read for two tiles."""

from __future__ import annotations

from math import prod

from zerotools.core.boxes import Box
from zerotools.core.errors import BadRequest
from zerotools.ops.execution.plan import Copy


def is_wide(copy: Copy) -> bool:
    """Whether larger tiles are read in longer runs, or read nothing twice."""
    if copy.scaled is None:
        return False
    scheme = copy.scaled.tensor.scheme
    return scheme.is_transposed or len(scheme.grain) > 1


def elements_of_tile(copy: Copy, most: int, buffer_bytes: int) -> int:
    """At most `most` elements: a multiple of the rows of a grain, if they fit.

    Raises:
        BadRequest: one grain does not fit in a buffer with what it is made of.
    """
    assert copy.scaled is not None
    tensor, box = copy.scaled.tensor, copy.target.box
    grain = tensor.scheme.grain[-len(box.shape) :] if box.shape else ()
    shape = tuple(map(min, grain, box.shape[len(box.shape) - len(grain) :]))
    least = Box((0,) * len(box.shape), (1,) * (len(box.shape) - len(grain)) + shape)
    read = sum(
        part.numel * tensor.inputs[name].dtype.itemsize
        for name, part in tensor.scheme.needs(least).items()
    )
    if (needed := 8 * least.numel + read) > buffer_bytes:
        raise BadRequest(
            f"--max-memory is too small for {copy.key.name}: a block of {list(shape)} takes "
            f"{needed} bytes, and a worker has buffers of {buffer_bytes}; give it more memory, or "
            "take fewer --workers"
        )
    if len(grain) < 2 or len(box.shape) < 2:
        return most
    rows = grain[-2] * prod(box.shape[-1:])
    return most // rows * rows or most
