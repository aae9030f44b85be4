"""`gpus = {min = 2, max = 8}`: a number of ranks that may change while a job runs."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key

MOST_RANKS = 1024
"""More than one machine has GPUs, or cores for ranks."""


@dataclass(frozen=True, kw_only=True)
class SizeRange:
    """The fewest and the most ranks of an elastic job."""

    min: int = key(
        "The smallest number of ranks: the job waits until it can have this many.", imported=False
    )
    max: int = key("The most ranks.", imported=False)

    def __str__(self) -> str:
        """Return the range in the form of a job file."""
        return f"{{min = {self.min}, max = {self.max}}}"

    def sizes(
        self, batch: int, micro: int | None, shard: int | None, together: int = 1
    ) -> tuple[int, ...]:
        """Return the world sizes in it, ascending, that divide the batch evenly: `batch` sequences
        of a step, `micro` of a forward pass, `shard` ranks that share one copy of the weights, and
        `together` ranks that take one share of the sequences."""
        found = range(max(1, self.min), min(self.max, batch * together, MOST_RANKS) + 1)
        return tuple(
            size
            for size in found
            if not (size % together or size % (shard or 1))
            and not (batch % (size // together) or (batch * together // size) % (micro or 1))
        )
