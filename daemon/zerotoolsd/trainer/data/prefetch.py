"""Reads the data of the next step while this one runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from zerotoolsd.trainer.data.batches import Batches
from zerotoolsd.trainer.data.sequences import RankBatch


class Prefetch:
    """The shares of one rank, step by step; a thread reads one ahead."""

    def __init__(self, batches: Batches, batch_size: int, rank: int, world_size: int) -> None:
        self._batches = batches
        self._whose = (batch_size, rank, world_size)
        self._reader = ThreadPoolExecutor(1, "next batch")
        self._ahead: tuple[int, Future[RankBatch]] | None = None

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.shutdown(cancel_futures=True)

    def share(self, first: int) -> RankBatch:
        """Return the rank's part of the batch that begins at position `first`.

        Raises:
            BadFile: the data has changed since the job began.
        """
        known = self._ahead
        found = known[1] if known is not None and known[0] == first else self._read(first)
        share = found.result()
        following = first + self._whose[0]
        self._ahead = (following, self._read(following))
        return share

    def _read(self, first: int) -> Future[RankBatch]:
        return self._reader.submit(self._batches.share, first, *self._whose)
