"""Text through a Hugging Face tokenizer, once, into a file of token ids."""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.data.corpus import Piece
from zerotoolsd.trainer.data.examplestore import ID_TYPE, stored
from zerotoolsd.trainer.data.sequences import Ids

LETTERS_AT_ONCE = 8 << 20
PIECES_AT_ONCE = 8192
"""Text is tokenised together, so much of it or so many pieces."""


class TokenFile:
    """Token ids in a file, of an `array` typecode; its name may go while it is read."""

    def __init__(self, path: Path, vocabulary: int, typecode: str = ID_TYPE) -> None:
        self.vocabulary = vocabulary
        self._ids = stored(path, typecode)

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, stop: int) -> Ids:
        """Tokens [start, stop)."""
        return self._ids.read(start, stop)


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer in `directory`; code that comes with it is not run.

    Raises:
        BadRequest: there is none, or transformers cannot load it.
    """
    from transformers import AutoTokenizer  # only jobs with a tokenizer of their own pay for it

    if not directory.is_dir():
        raise BadRequest(f"data.tokenizer: {directory} is not a directory")
    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # whatever a tokenizer of any kind raises over its files
        line = next(iter(str(error).strip().splitlines()), "")
        if not line or isinstance(error, LookupError):  # whose text is a bare key
            line = f"transformers cannot read its files ({type(error).__name__} {line})"
        raise BadRequest(f"data.tokenizer: {directory} cannot be loaded: {line}") from None


def tokenize(pieces: Iterable[Piece], tokenizer: Any, destination: Path) -> None:
    """Write the ids of all `pieces` of text to `destination`.

    So many go through together that every core has some, and memory does not grow with the text.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    with destination.open("wb") as file:
        for batch in _batches(pieces):
            for piece, ids in zip(
                batch, ids_of_texts(tokenizer, [piece.text for piece in batch]), strict=True
            ):
                array.array(ID_TYPE, ids + end if piece.is_last else ids).tofile(file)


def ids_of_texts(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The ids of `texts`, without special tokens around them."""
    if not tokenizer.is_fast:
        found: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        return found
    # Beside the ids, the tokenizer's own call makes lists that nobody reads, which takes longer.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    letters = 0
    for piece in pieces:
        batch.append(piece)
        letters += len(piece.text)
        if letters >= LETTERS_AT_ONCE or len(batch) == PIECES_AT_ONCE:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch
