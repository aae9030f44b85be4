"""Looking at files that may never answer, without waiting for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


async def run_with_timeout(
    seconds: float,
    look: Callable[Parameters, Value],
    *args: Parameters.args,
    **kwargs: Parameters.kwargs,
) -> Value:
    """The value of `look(...)`, which runs in a thread of its own.

    The executor's threads would not do: a few that hang would hold up all the others, and the end
    of the process. Raises TimeoutError; the thread is then left behind.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Value] = loop.create_future()

    def settle(value: Value | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # None only beside an error

    def run() -> None:
        value, error = None, None
        try:
            value = look(*args, **kwargs)
        except Exception as raised:  # whatever it is belongs to whoever waits
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, daemon=True, name="patience").start()
    return await asyncio.wait_for(answer, seconds)
