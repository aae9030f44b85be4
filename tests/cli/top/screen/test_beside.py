from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.daemon.waiting import wait_async, wait_for
from zerotools.cli.top.screen.beside import Beside


def test_what_is_done_beside_comes_to_the_loop_in_order() -> None:
    told: list[Any] = []

    async def run() -> None:
        beside, loop_thread = Beside("test-ends"), threading.get_ident()
        threads: list[int] = []

        def fails() -> int:
            threads.append(threading.get_ident())
            raise ValueError("no")

        beside.do(lambda: 7, told.append, told.append)
        beside.do(fails, told.append, lambda error: told.append(str(error)))
        assert not beside.is_idle

        async def is_idle() -> bool:
            return beside.is_idle

        await wait_async(is_idle, "both")
        assert told == [7, "no"]
        assert threads != [loop_thread]
        beside.close()

    asyncio.run(run())
    wait_for(lambda: "test-ends" not in {each.name for each in threading.enumerate()}, "its end")


def test_what_comes_after_the_end_is_nobodys() -> None:
    """The thread hangs while the loop ends, and nothing is raised then."""
    goes_on, is_done = threading.Event(), threading.Event()

    def hangs() -> None:
        goes_on.wait()
        threading.current_thread().name = "done"

    async def run() -> None:
        beside = Beside("test")
        beside.do(hangs, lambda _: is_done.set(), lambda _: is_done.set())
        beside.do(is_done.set, lambda _: None, lambda _: None)
        beside.close()

    asyncio.run(run())
    goes_on.set()
    assert is_done.wait(20)
