"""What is read ahead is what would have been read."""

from __future__ import annotations

import pytest

from tests.daemon.trainer.data.test_batches import batches_of
from zerotools.core.errors import BadFile
from zerotoolsd.trainer.data.prefetch import Prefetch


def test_the_shares_are_those_of_the_batches() -> None:
    plain, batches = batches_of(101, 5, 3), batches_of(101, 5, 3)
    with Prefetch(batches, 6, 1, 2) as ahead:
        for first in (0, 6, 12, 18, 60, 66):
            found, wanted = ahead.share(first), plain.share(first, 6, 1, 2)
            assert [e.inputs.tolist() for e in found.examples] == [
                e.inputs.tolist() for e in wanted.examples
            ]
            assert (found.predicted, found.tokens) == (wanted.predicted, wanted.tokens)


def test_an_error_comes_with_the_step_that_needs_the_data() -> None:
    batches = batches_of(11, 5, 3)
    read = batches.pool.tokens.read  # type: ignore[attr-defined]
    seen: list[int] = []

    def once(start: int, stop: int) -> object:
        seen.append(start)
        if len(seen) > 1:
            raise BadFile("it has become shorter")
        return read(start, stop)

    batches.pool.tokens.read = once  # type: ignore[attr-defined]
    with Prefetch(batches, 1, 0, 1) as ahead:
        ahead.share(0)
        with pytest.raises(BadFile, match="become shorter"):
            ahead.share(1)
