"""Text through a Hugging Face tokenizer, once, into a file of token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.data.corpus import Piece
from zerotoolsd.trainer.data.encoding.text_ids import TextIds
from zerotoolsd.trainer.data.examplestore import ID_TYPE, stored
from zerotoolsd.trainer.data.sequences import Ids
from zerotoolsd.trainer.data.tokenizer_pool import in_processes

LETTERS_AT_ONCE = 8 << 20
PIECES_AT_ONCE = 8192
"""Text is tokenised together, so much of it or so many pieces."""
PARTS = 4
"""Divisor of the texts at once for a process next to the rank."""


class TokenFile:
    """Token ids in a file, of an `array` typecode; its name may go while it is read."""

    def __init__(self, path: Path, vocabulary: int, typecode: str = ID_TYPE) -> None:
        self.vocabulary = vocabulary
        self._ids = stored(path, typecode)

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, stop: int) -> Ids:
        """Return tokens [start, stop)."""
        return self._ids.read(start, stop)


def load_tokenizer(directory: Path) -> Any:
    """Return the tokenizer in `directory`; code in the directory is not run.

    Raises:
        BadRequest: it does not exist, or transformers cannot load it.
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


def tokenize(
    pieces: Iterable[Piece],
    tokenizer: Any,
    destination: Path,
    *,
    processes: int = 0,
    ended: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the ids of all `pieces` of text to `destination`, by so many `processes` in addition to
    this one; `ended` is as of `in_processes`. Memory does not grow with the text."""
    make = make_loaded_tokenizing if processes else make_tokenizing
    named = Path(tokenizer.name_or_path) if processes else tokenizer
    letters = LETTERS_AT_ONCE // (PARTS if processes else 1)
    with destination.open("wb") as file:
        batches = _batches(pieces, letters)
        for ids in in_processes(batches, make, (named,), processes, ended=ended):
            file.write(ids)


def make_tokenizing(tokenizer: Any) -> Callable[[Sequence[Piece]], bytes]:
    """Return the function that encodes pieces of text as `ID_TYPE`, one after the other."""
    texts = TextIds(tokenizer)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    at_end = np.array(end, np.uint32)

    def tokenized(batch: Sequence[Piece]) -> bytes:
        parts: list[Any] = []
        for piece, ids in zip(batch, texts.ids([piece.text for piece in batch]), strict=True):
            parts += (ids, at_end) if piece.is_last else (ids,)
        return np.concatenate(parts).astype("<u4", copy=False).tobytes()

    return tokenized


def make_loaded_tokenizing(directory: Path) -> Callable[[Sequence[Piece]], bytes]:
    """Return the same function for the tokenizer in `directory`."""
    return make_tokenizing(load_tokenizer(directory))


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
