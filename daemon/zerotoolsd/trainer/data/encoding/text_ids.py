"""Ids of texts, without special tokens around them, and their positions in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zerotoolsd.trainer.data.encoding.word_ids import word_ids_of

Ids = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LocatedIds:
    """The `ids` of a text, and the begin and end of each: in letters, or in bytes of UTF-8 with
    `in_bytes`."""

    text: str
    ids: Ids
    starts: Places
    ends: Places
    in_bytes: bool = False

    def place(self, letter: int) -> int:
        """Return the position of that letter in the unit of `starts` and `ends`."""
        if not self.in_bytes or self.text.isascii():
            return letter
        return len(self.text[:letter].encode())


class TextIds:
    """Encodes texts by a Hugging Face tokenizer: by words if that is exact, else by its library.
    The tokenizer's call makes lists that are not needed, which takes longer than the encoding."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = None
        self._words = None
        if tokenizer.is_fast:
            self._backend = tokenizer.backend_tokenizer
            self._backend.no_truncation()
            self._backend.no_padding()
            self._words = word_ids_of(self._backend)

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text."""
        if self._backend is None:
            found = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)
            return [np.array(ids, np.uint32) for ids in found["input_ids"]]
        known = self._known(texts)
        left = [text for text, ids in zip(texts, known, strict=True) if ids is None]
        encodings = iter(self._backend.encode_batch_fast(left, add_special_tokens=False))
        return [np.array(next(encodings).ids, np.uint32) if ids is None else ids for ids in known]

    def located(self, texts: Sequence[str]) -> Iterator[LocatedIds]:
        """Yield the ids of each text with their positions. Only for a fast tokenizer."""
        assert self._backend is not None
        # Where its tokens are bytes, their sizes say more than the library, which may leave spaces
        # out of a token's place.
        known = self._known(texts) if self._words is None else self.ids(texts)
        found = [*map(self._by_bytes, texts, known)]
        left = [text for text, each in zip(texts, found, strict=True) if each is None]
        encodings = iter(self._backend.encode_batch(left, add_special_tokens=False))
        for text, each in zip(texts, found, strict=True):
            if each is not None:
                yield each
                continue
            encoding = next(encodings)
            places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            ids = np.array(encoding.ids, np.uint32)
            yield LocatedIds(text, ids, places[:, 0], places[:, 1])

    def _known(self, texts: Sequence[str]) -> Sequence[Ids | None]:
        return [None] * len(texts) if self._words is None else self._words.ids(texts)

    def _by_bytes(self, text: str, ids: Ids | None) -> LocatedIds | None:
        if ids is None or self._words is None or self._words.is_changed(text):
            return None
        ends = self._words.ends(ids)
        size = len(text) if text.isascii() else len(text.encode())
        if size != (ends[-1] if len(ends) else 0):  # a byte that the vocabulary does not have
            return None
        return LocatedIds(text, ids, np.concatenate([ends[:0], [0], ends[:-1]]), ends, True)
