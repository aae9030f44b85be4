"""Divide the memory budget of an upload between making, holding and sending."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerotools.core.errors import BadRequest
from zerotools.ops.execution.tile_workers import MemoryBudget

LEAST_MEMORY = 64 * 2**20
LEAST_PART, USUAL_PART = 5 * 2**20, 8 * 2**20
_MOST_PARTS = 9_000
"""The largest number of parts of one object that object stores accept."""
_FILES, _PARTS = 4, 12
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class UploadMemory:
    """The division of the memory budget: a quarter for parts that are being sent, a quarter for
    records that wait for their checksum, and half (`budget`) for making tiles.

    `files` are sent at the same time, with `parts` of each.
    """

    files: int
    parts: int
    held_bytes: int
    budget: MemoryBudget

    @classmethod
    def of(cls, budget: MemoryBudget, count: int) -> UploadMemory:
        """Divide `budget` for an output of `count` files.

        Raises:
            BadRequest: the budget is too small for one part.
        """
        if budget.max_memory < LEAST_MEMORY:
            raise BadRequest(
                f"--max-memory is {budget.max_memory} bytes; writing to a store needs at least "
                f"{LEAST_MEMORY}, because objects are sent in parts of {LEAST_PART}"
            )
        quarter = budget.max_memory // 4
        files = max(1, min(_FILES, count, quarter // (3 * USUAL_PART)))
        parts = max(1, min(_PARTS, quarter // (files * USUAL_PART) - 2))
        rest = replace(budget, max_memory=budget.max_memory // 2)
        return cls(files, parts, quarter // files, rest)

    def parallel(self, size: int) -> int:
        """Return the number of parts of an object of `size` bytes that may be sent at the same
        time."""
        return max(1, min(self.parts, self.held_bytes // self.part_bytes(size) - 2))

    def part_bytes(self, size: int) -> int:
        """Return how many bytes each part has if an object of `size` bytes is sent in parts. Parts
        are larger if the object would have more of them than a store allows.
        """
        room = self.held_bytes // (self.parts + 2) // _MIB * _MIB
        usual = max(LEAST_PART, min(USUAL_PART, room))
        return max(usual, -(-size // _MOST_PARTS // _MIB) * _MIB)
