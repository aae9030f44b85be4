"""How large the tiles of scaled casts are: whole rows of blocks where those fit, so that no block
is read for two tiles."""

from __future__ import annotations

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.core.quantisation_schemes import ScaledCast
from zerotools.ops.execution.plan import Copy


def is_wide(copy: Copy) -> bool:
    """Return whether larger tiles are read in longer runs."""
    return copy.scaled is not None and copy.scaled.tensor.scheme.is_transposed


def elements_of_tile(copy: Copy, most: int, wide: int, buffer_bytes: int) -> int:
    """Return at most `most` elements, or `wide` where less has no whole row of grains: a multiple
    of the rows of a grain, if they fit.

    Raises:
        BadRequest: as `check_buffer`.
    """
    assert copy.scaled is not None
    tensor, shape = copy.scaled.tensor, copy.target.box.shape
    check_buffer(copy.key, tensor, buffer_bytes)
    grain = tensor.scheme.grain
    if len(grain) < 2 or len(shape) < 2:
        return most
    rows = grain[-2] * shape[-1]
    return most // rows * rows or (rows if rows <= wide else most)


def check_buffer(key: Key, tensor: ScaledCast, buffer_bytes: int) -> None:
    """Raise an error if one grain and its inputs do not fit in a buffer of a worker.

    Raises:
        BadRequest: see above.
    """
    shape = tensor.shape
    grains = (1,) * (len(shape) - len(tensor.scheme.grain)) + tensor.scheme.grain
    least = Box((0,) * len(shape), tuple(map(min, grains, shape)))
    if least.is_empty:
        return
    needed = 2 * max(tensor.bytes_read(least), tensor.scheme.work_bytes(least))
    if needed > buffer_bytes:
        block = "x".join(map(str, least.shape))
        raise BadRequest(
            f"--max-memory is too small for {key.name}: a block of {block} takes {needed} bytes, "
            f"and a worker has buffers of {buffer_bytes}; give it more memory, or take fewer "
            "--workers"
        )
