"""How many ranks a checkpoint can be laid out for."""

from __future__ import annotations

from zerotools.core.errors import BadRequest

MAX_RANKS = 100_000
"""Every rank is a file or more; far above any run, and far below what fills memory or a disk."""


def check_world_size(world_size: int) -> None:
    """Refuse a number of ranks that no run has.

    Raises:
        BadRequest: see above.
    """
    if world_size < 1:
        raise BadRequest(f"--world-size is {world_size}; a run has at least 1 rank")
    if world_size > MAX_RANKS:
        raise BadRequest(
            f"--world-size is {world_size}; zerotools supports at most {MAX_RANKS} ranks"
        )
