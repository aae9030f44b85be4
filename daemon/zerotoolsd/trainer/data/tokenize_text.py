"""Tokenises text with a Hugging Face tokenizer, in this process or in several processes."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.data.encoding.token_positions import TextIds
from zerotoolsd.trainer.data.example_pools import Ids
from zerotoolsd.trainer.data.example_store import ID_TYPE, open_numbers
from zerotoolsd.trainer.data.token_stream import Piece

LETTERS_AT_ONCE = 8 << 20
PIECES_AT_ONCE = 8192
"""Text is tokenised in batches of at most this many pieces, or LETTERS_AT_ONCE characters."""
PARTS = 4
"""Batches for other processes are smaller by this factor than batches for this process."""


class TokenFile:
    """Reads token ids from a file of numbers.

    The type of the numbers is given as a type code of Python's `array`. The file may be deleted
    while it is open.
    """

    def __init__(self, path: Path, vocabulary: int, typecode: str = ID_TYPE) -> None:
        self.vocabulary = vocabulary
        self._ids = open_numbers(path, typecode)

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, stop: int) -> Ids:
        return self._ids.read(start, stop)


def load_tokenizer(directory: Path) -> Any:
    """Load the tokenizer in `directory`, and return it.

    Python code in the directory is not run.

    Raises:
        BadRequest: the directory does not exist, or transformers cannot load the tokenizer.
    """
    from transformers import AutoTokenizer  # only jobs with their own tokenizer need this import

    if not directory.is_dir():
        raise BadRequest(f"data.tokenizer: {directory} is not a directory")
    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # whatever a tokenizer of any kind raises over its files
        line = next(iter(str(error).strip().splitlines()), "")
        if not line or isinstance(error, LookupError):  # an error with only a key as text
            line = f"transformers cannot read its files ({type(error).__name__} {line})"
        raise BadRequest(f"data.tokenizer: {directory} cannot be loaded: {line}") from None


def missing_end(tokenizer: Any, key: str) -> tuple[str, ...]:
    """Return a note if `tokenizer` has no token for the end of a document of the job key `key`."""
    if tokenizer is None or tokenizer.eos_token_id is not None:
        return ()
    return (
        f"{key}: the tokenizer in {tokenizer.name_or_path} has no eos_token, so no token separates "
        "documents and files; set eos_token in its tokenizer_config.json",
    )


def tokenize(
    pieces: Iterable[Piece],
    tokenizer: Any,
    destination: Path,
    *,
    processes: int = 0,
    ended: Callable[[int], None] = lambda _: None,
) -> None:
    """Tokenise all `pieces` of text, and write the ids to `destination`. Memory does not grow with
    the text.

    If `processes` is not 0, that many child processes tokenise the text. `ended` is called with the
    exit status of a child process that ends early.
    """
    make = make_loaded_piece_encoder if processes else make_piece_encoder
    named = Path(tokenizer.name_or_path) if processes else tokenizer
    letters = LETTERS_AT_ONCE // (PARTS if processes else 1)
    with destination.open("wb") as file:
        batches = _batches(pieces, letters)
        for ids in in_processes(batches, make, (named,), processes, ended=ended):
            file.write(ids)


def make_piece_encoder(tokenizer: Any) -> Callable[[Sequence[Piece]], bytes]:
    """Return a function that tokenises pieces of text, and returns their ids as bytes of dtype
    `ID_TYPE`.
    """
    texts = TextIds(tokenizer)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    at_end = np.array(end, np.uint32)

    def tokenized(batch: Sequence[Piece]) -> bytes:
        parts: list[Any] = []
        for piece, ids in zip(batch, texts.ids([piece.text for piece in batch]), strict=True):
            parts += (ids, at_end) if piece.is_last else (ids,)
        return np.concatenate(parts).astype("<u4", copy=False).tobytes()

    return tokenized


def make_loaded_piece_encoder(directory: Path) -> Callable[[Sequence[Piece]], bytes]:
    """Load the tokenizer in `directory`, and return the result of `make_piece_encoder` for it."""
    return make_piece_encoder(load_tokenizer(directory))


def _batches(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    letters = 0
    for piece in pieces:
        batch.append(piece)
        letters += len(piece.text)
        if letters >= most or len(batch) == PIECES_AT_ONCE:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch


Batch = TypeVar("Batch")
Result = TypeVar("Result")
Maker = Callable[..., Callable[[Any], Any]]
"""A function that makes the function that processes batches.

Another process imports this function by its name.
"""

LAST_SECONDS = 1.0
"""A process that is no longer used has this many seconds to end before it is killed."""
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
    """Apply the function `make(*arguments)` to all batches in `count` processes; yield the results
    in order.

    If `count` is 0, this process does the work. Several processes are faster, because much of the
    work is Python code, which uses only one core per process. A process may fail to start, or may
    end early, for example if the kernel kills it for lack of memory. Then the calling process does
    the remaining batches. If a process ends early, `ended` is called with its exit status.

    Raises:
        Exception: the error of a batch, after the results of the batches before it.
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
                yield _next_result(asked, do)
        while asked:
            yield _next_result(asked, do)


def _end(process: subprocess.Popen[bytes]) -> int:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(LAST_SECONDS)
    process.kill()
    return process.wait()


def _next_result(
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
