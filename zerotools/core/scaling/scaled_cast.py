"""A tensor that is computed from others: from a payload and its scales, or the reverse.

Weights of 8 or 4 bits mean nothing without their scales, and a checkpoint holds the two as tensors
of their own. Here they are one tensor again; its elements are computed and lie in no file:

    layer.weight            float8_e4m3fn  (300, 256)   payload      |
    layer.weight_scale_inv  float32        (3, 2)       scales       |  one for each 128x128 block
    -> layer.weight         float32        (300, 256)   ScaledCast(inputs={payload, scales})

A `Scheme` names the block of each input that a box needs. Here, rows 120:140 and columns 0:256 need
the same rows of the payload and the scales [0:2, 0:2]. So a tile can be made without the rest of
the tensor. The computation is in `zerotools.io.numeric.scaled_values`.

A tensor of this kind has no chunks. Code that does not know it finds a hole, and never bytes
without their scales.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Tensor


class Scheme(ABC):
    """How the elements of one tensor are made of those of its inputs."""

    @abstractmethod
    def needs(self, box: Box) -> dict[str, Box]:
        """Return the block of each input, by its name, that the elements in `box` are made of."""

    def work_bytes(self, box: Box) -> int:
        """Return the bytes that computing the elements in `box` takes in addition to the inputs."""
        return 8 * box.numel

    @property
    def grain(self) -> tuple[int, ...]:
        """Boxes are cut at multiples of these alone, one for each of the last dimensions."""
        return ()

    @property
    def is_transposed(self) -> bool:
        """True if the last dimension of the result lies along rows of the inputs."""
        return False

    def halves(self, box: Box) -> tuple[Box, Box] | None:
        """Return the box in two, along the first dimension that can be cut at a grain; None of a
        box that is not larger than one."""
        axes = list(range(len(box.shape)))
        if self.is_transposed:
            axes = axes[::-1]
        grains = (1,) * (len(axes) - len(self.grain)) + self.grain
        for axis in axes:
            start, count, grain = box.start[axis], box.shape[axis], grains[axis]
            below = (start + count // 2) // grain * grain
            for middle in (below, below + grain):
                if start < middle < start + count:
                    return _split(box, axis, middle)
        return None


@dataclass(frozen=True, slots=True)
class ScaledCast(Tensor):
    """A tensor of `dtype` and `shape` that `scheme` computes from `inputs`; it has no chunks.

    float32 values are cast to the requested type; any other type is that of the result.
    """

    scheme: Scheme
    inputs: Mapping[str, Tensor]

    def blocks_to_read(self, box: Box, most: int) -> Iterator[Box]:
        """Yield `box` in blocks with inputs of at most `most` bytes, or in blocks of one grain."""
        return self._cut(box, lambda part: self.bytes_read(part) <= most)

    def blocks_within(self, box: Box, most: int, largest: int) -> Iterator[Box]:
        """Yield `box` in blocks of at most `largest` elements that take at most `most` bytes to
        compute, or in blocks of one grain."""

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
        """Return the bytes of the inputs that the elements in `box` are made of."""
        needed = self.scheme.needs(box)
        return sum(part.numel * self.inputs[name].dtype.itemsize for name, part in needed.items())


def stored_tensors(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that store the elements of `tensor`: itself, or its inputs."""
    return tuple(tensor.inputs.values()) if isinstance(tensor, ScaledCast) else (tensor,)


def _split(box: Box, axis: int, middle: int) -> tuple[Box, Box]:
    def part(begin: int, end: int) -> Box:
        start = (*box.start[:axis], begin, *box.start[axis + 1 :])
        return Box(start, (*box.shape[:axis], end - begin, *box.shape[axis + 1 :]))

    begin = box.start[axis]
    return part(begin, middle), part(middle, begin + box.shape[axis])
