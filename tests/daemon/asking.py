"""Questions about files, answered by a thread: for engines in the event loop of a test."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

from zerotoolsd.file_checks.file_check_server import Look, answer_to
from zerotoolsd.file_checks.file_checker_pool import value_of
from zerotoolsd.users.start_as_submitter import JobUser


async def ask_thread(
    seconds: float, look: Look, *arguments: object, user: JobUser | None = None
) -> Any:
    """As `FileCheckers.ask`, of the daemon's own user; a thread that hangs is left behind."""
    assert user is None
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[dict[str, Any]] = loop.create_future()

    def settle(found: dict[str, Any]) -> None:
        if not answer.done():
            answer.set_result(found)

    def run() -> None:
        found = answer_to(look, *arguments)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, daemon=True).start()
    return value_of(await asyncio.wait_for(answer, seconds))
