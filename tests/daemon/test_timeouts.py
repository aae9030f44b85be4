"""Waiting for a look at files, with a deadline."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from zerotoolsd.timeouts import run_with_timeout


def test_a_look_gives_its_value_or_its_error() -> None:
    async def story() -> None:
        assert await run_with_timeout(20, Path("/").is_dir) is True
        with pytest.raises(FileNotFoundError):
            await run_with_timeout(20, Path("/no/such").stat)

    asyncio.run(story())


def test_a_look_that_hangs_is_left_behind() -> None:
    answer = threading.Event()

    async def story() -> None:
        # More than the executor has threads.
        looks = (run_with_timeout(0.05, answer.wait) for _ in range(100))
        found = await asyncio.gather(*looks, return_exceptions=True)
        assert all(isinstance(each, TimeoutError) for each in found)
        assert await asyncio.to_thread(lambda: 7) == 7

    asyncio.run(story())
    answer.set()
