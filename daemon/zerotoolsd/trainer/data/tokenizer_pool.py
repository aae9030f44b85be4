"""Tokenises batches in processes next to a rank, and returns the results in order.

Rendering chats, finding answers and looking words up is Python code, for which one process uses one
core. Small data is tokenised in the rank itself.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

Batch = TypeVar("Batch")
Result = TypeVar("Result")
Maker = Callable[..., Callable[[Any], Any]]
"""Makes a function for batches of its arguments. A process imports it by its name."""

LAST_SECONDS = 1.0
"""A process that answers no more is killed if it does not end within this time."""
_PROGRAM = Path(__file__).with_name("tokenizing_process.py")
_VARIABLES = {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def in_processes(
    batches: Iterable[Batch],
    make: Maker,
    arguments: tuple[Any, ...],
    count: int,
    *,
    ended: Callable[[int], None] = lambda _: None,
) -> Iterator[Any]:
    """Yield the result of `make(*arguments)` for each batch, from `count` processes (0: this one).

    A process that ends, such as one that the kernel has killed for memory, is done without: this
    process does the batch instead, and `ended` takes its exit status. So is one that cannot be
    started.

    Raises:
        Exception: the error of a batch, after the results before it were taken.
    """
    do = make(*arguments)
    left = iter(batches)
    first = next(left, None)
    if first is None:
        return
    yield do(first)
    if not count:
        yield from map(do, left)
        return
    with ExitStack() as until_done:
        # Left last: threads that wait for a process then read the end of its answers.
        threads = until_done.enter_context(ThreadPoolExecutor(count))
        idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        for _ in range(count):
            process = None
            with suppress(OSError):  # there may be no room for another process
                process = until_done.enter_context(_process())
            idle.put(process)
        until_done.callback(threads.shutdown, wait=False, cancel_futures=True)
        begin = pickle.dumps((make, arguments, first), pickle.HIGHEST_PROTOCOL)
        begun: set[int] = set()

        def ask(batch: Batch) -> tuple[bool, Any] | None:
            process = idle.get()
            answer = None
            if process is not None:
                assert process.stdin is not None
                assert process.stdout is not None
                # An exception of a library may be one that pickle does not read.
                with suppress(Exception):
                    if process.pid not in begun:
                        begun.add(process.pid)
                        process.stdin.write(begin)
                    pickle.dump(batch, process.stdin, pickle.HIGHEST_PROTOCOL)
                    process.stdin.flush()
                    answer = pickle.load(process.stdout)
                if answer is None:
                    ended(_end(process))
                    process = None
            idle.put(process)
            return answer

        asked: deque[tuple[Batch, Future[tuple[bool, Any] | None]]] = deque()
        for batch in left:
            asked.append((batch, threads.submit(ask, batch)))
            if len(asked) > 2 * count:
                yield _taken(asked, do)
        while asked:
            yield _taken(asked, do)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process that has become useless."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(LAST_SECONDS)
    process.kill()
    return process.wait()


def _taken(
    asked: deque[tuple[Batch, Future[tuple[bool, Any] | None]]], do: Callable[[Batch], Any]
) -> Any:
    batch, future = asked.popleft()
    answer = future.result()
    if answer is None:
        return do(batch)
    is_done, value = answer
    if not is_done:
        raise value
    return value


@contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **_VARIABLES},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # batches that were not sent to it any more
                pipe.close()  # type: ignore[union-attr]
