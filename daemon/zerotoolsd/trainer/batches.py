"""Which sequences step s trains on: the same at every number of ranks.

The token stream is cut into windows of `sequence_length + 1` tokens, each beginning with the last
token of the one before, so that every token but the first is predicted once in an epoch. Position
p of the run, counted over all epochs, is window `shuffle(epoch)[p % windows]` of epoch
`p // windows`. A step takes the next `batch_size` positions; a rank takes its even share of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.corpus import Tokens
from zerotoolsd.trainer.shuffle import Shuffle


class Batches:
    """The global order of sequences over a token stream."""

    def __init__(self, tokens: Tokens, *, sequence_length: int, seed: int) -> None:
        """
        Raises:
            BadRequest: there is not even one sequence in `tokens`.
        """
        self.tokens = tokens
        self.sequence_length = sequence_length
        self.windows = (len(tokens) - 1) // sequence_length
        if self.windows < 1:
            raise BadRequest(
                f"data.text has {len(tokens)} tokens and one sequence takes "
                f"data.sequence_length + 1 = {sequence_length + 1}: add text or shorten it"
            )
        self._seed = seed
        self._shuffle = Shuffle(self.windows, seed=seed, epoch=0)
        self._epoch = 0

    def window(self, position: int) -> int:
        """The number of the window at a position of the run."""
        epoch, index = divmod(position, self.windows)
        if epoch != self._epoch:
            self._shuffle = Shuffle(self.windows, seed=self._seed, epoch=epoch)
            self._epoch = epoch
        return self._shuffle[index]

    def sequences(self, first: int, count: int) -> list[Sequence[int]]:
        """`count` sequences of `sequence_length + 1` tokens from position `first` on."""
        length = self.sequence_length
        starts = [self.window(first + offset) * length for offset in range(count)]
        return [self.tokens.read(start, start + length + 1) for start in starts]


def rank_share(first: int, batch_size: int, rank: int, world_size: int) -> tuple[int, int]:
    """(first position, count) of a rank's part of the batch that begins at position `first`."""
    count = batch_size // world_size
    return first + rank * count, count
