"""Threads of one process in place of ranks: for tests of models, which are small."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from zerotoolsd.trainer.sequence_parallel.all_to_all import Exchange

LONGEST_WAIT = 60.0
"""Seconds that one waits for another."""
Found = TypeVar("Found")


def in_threads(ranks: int, work: Callable[[Exchange], Found]) -> list[Found]:
    """Return the result of `work` for each of so many `ranks`, in threads that exchange blocks.

    Raises:
        Exception: the error of one of them; BrokenBarrierError if they exchange unequally often.
    """
    table = _Table(ranks)

    def one(index: int) -> Found:
        try:
            return work(_OverThreads(table, index, ranks))
        except BaseException:  # the others do not wait for it, and it is raised again
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        running = [pool.submit(one, index) for index in range(ranks)]
        errors = [found for each in running if (found := each.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):  # caused by another thread's error
            raise error
    return [each.result() for each in running]


@dataclass
class _Table:
    """The shared values of the threads."""

    ranks: int
    told: list[torch.Tensor] = field(init=False)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.told = [torch.empty(0)] * self.ranks
        self.barrier = threading.Barrier(self.ranks, timeout=LONGEST_WAIT)


@dataclass(frozen=True)
class _OverThreads:
    """Implements `Exchange` between threads."""

    table: _Table
    index: int
    ranks: int

    def swap(self, blocks: torch.Tensor) -> torch.Tensor:
        """Exchange blocks; see `Exchange.swap`."""
        return torch.stack([told[self.index] for told in self._everyone(blocks)])

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum; see `Exchange.total`."""
        return torch.stack(self._everyone(values)).sum(0)

    def _everyone(self, own: torch.Tensor) -> list[torch.Tensor]:
        self.table.told[self.index] = own
        self.table.barrier.wait()
        told = list(self.table.told)
        self.table.barrier.wait()
        return told
