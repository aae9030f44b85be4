"""A tensor that is computed from other tensors: a quantised weight, from its payload and scales.

Only positions are computed here, no values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Tensor


class Scheme(ABC):
    """A rule that computes the elements of one tensor from other tensors, its inputs."""

    @abstractmethod
    def needs(self, box: Box) -> dict[str, Box]:
        """Return {name of an input: its block from which the elements in `box` are computed}."""

    def work_bytes(self, box: Box) -> int:
        """Return the bytes of working memory for the computation of `box`, without the inputs."""
        return 8 * box.numel

    @property
    def smallest_block(self) -> tuple[int, ...]:
        """The shape of the smallest block that can be computed alone: boxes are cut only at
        multiples of this shape. It has entries for the last dimensions; others are cut at any
        index.
        """
        return ()

    @property
    def is_transposed(self) -> bool:
        """True if the last dimension of the result corresponds to the rows of the inputs."""
        return False

    def halves(self, box: Box) -> tuple[Box, Box] | None:
        """Cut the box in two, along the first dimension in which it is longer than
        `smallest_block`.

        Return None if the box is not larger than `smallest_block`.
        """
        axes = list(range(len(box.shape)))
        if self.is_transposed:
            axes = axes[::-1]
        steps = (1,) * (len(axes) - len(self.smallest_block)) + self.smallest_block
        for axis in axes:
            start, count, step = box.start[axis], box.shape[axis], steps[axis]
            below = (start + count // 2) // step * step
            for middle in (below, below + step):
                if start < middle < start + count:
                    return _split(box, axis, middle)
        return None


@dataclass(frozen=True, slots=True)
class ScaledCast(Tensor):
    """A tensor of `dtype` and `shape` that `scheme` computes from `inputs`: a payload and its
    scales.

    Weights of 8 or 4 bits mean nothing without their scales, and a checkpoint stores the two as
    separate tensors. Here they are one tensor again; its elements are computed and are in no file:

        layer.weight            float8_e4m3fn  (300, 256)   payload
        layer.weight_scale_inv  float32        (3, 2)       scales: one for each 128x128 block
        -> layer.weight         float32        (300, 256)   ScaledCast(inputs={payload, scales})

    A `Scheme` says which block of each input is needed to compute a box. Here, rows 120:140 and
    columns 0:256 need the same rows of the payload and the scales [0:2, 0:2]. So a tile can be
    computed without the rest of the tensor: `zerotools.io.numeric.quantised_values` does it. The
    reverse, a payload computed from values, is a ScaledCast too.

    The tensor has no chunks. Code that does not know ScaledCast finds a tensor without bytes, and
    never a payload without its scales. A scheme computes either float32 values, which are then cast
    to `dtype`, or values that are already in `dtype`.
    """

    scheme: Scheme
    inputs: Mapping[str, Tensor]

    def blocks_to_read(self, box: Box, most: int) -> Iterator[Box]:
        """Cut `box` into parts that have at most `most` bytes of inputs each. A single
        smallest block may have more.
        """
        return self._cut(box, lambda part: self.bytes_read(part) <= most)

    def blocks_within(self, box: Box, most: int, largest: int) -> Iterator[Box]:
        """Cut `box` into parts of at most `largest` elements that need at most `most` bytes of
        working memory each. A single smallest block may need more.
        """

        def fits(part: Box) -> bool:
            return part.numel <= largest and self.scheme.work_bytes(part) <= most

        return self._cut(box, fits)

    def _cut(self, box: Box, fits: Callable[[Box], bool]) -> Iterator[Box]:
        if box.is_empty:
            return
        halves = None if fits(box) else self.scheme.halves(box)
        if halves is None:
            yield box
            return
        for half in halves:
            yield from self._cut(half, fits)

    def bytes_read(self, box: Box) -> int:
        """Return the number of input bytes from which the elements in `box` are computed."""
        needed = self.scheme.needs(box)
        return sum(part.numel * self.inputs[name].dtype.itemsize for name, part in needed.items())


def stored_tensors(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that files must store for `tensor`: the tensor itself or, if it is
    computed, its inputs.
    """
    return tuple(tensor.inputs.values()) if isinstance(tensor, ScaledCast) else (tensor,)


def _split(box: Box, axis: int, middle: int) -> tuple[Box, Box]:
    def part(begin: int, end: int) -> Box:
        start = (*box.start[:axis], begin, *box.start[axis + 1 :])
        return Box(start, (*box.shape[:axis], end - begin, *box.shape[axis + 1 :]))

    begin = box.start[axis]
    return part(begin, middle), part(middle, begin + box.shape[axis])
