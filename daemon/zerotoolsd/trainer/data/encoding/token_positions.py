"""Returns the token ids of texts, without special tokens, and the position of each token in the
text.

For a byte-level BPE, `WordIds` splits a text into words and encodes each distinct word only once.
This is four times as fast as the tokenizer.
"""

from __future__ import annotations

import array
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LocatedIds:
    """The token `ids` of a text, and the position at which each token begins and ends.

    The positions are counted in characters, or in UTF-8 bytes if `in_bytes` is True.
    """

    text: str
    ids: Ids
    starts: Places
    ends: Places
    in_bytes: bool = False

    def to_unit(self, letter: int) -> int:
        """Convert `letter`, a position in characters, to the unit of `starts` and `ends`."""
        if not self.in_bytes or self.text.isascii():
            return letter
        return len(self.text[:letter].encode())


class TextIds:
    """Encodes texts for a Hugging Face tokenizer.

    It encodes word by word (`WordIds`) if this gives the ids of the tokenizer, else with the
    tokenizers library. It does not call the tokenizer itself, because that call also builds lists
    that are not needed here, and this takes longer than the encoding.
    """

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
        """Return the token ids of each text, without special tokens."""
        if self._backend is None:
            found = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)
            return [np.array(ids, np.uint32) for ids in found["input_ids"]]
        known = self._ids_by_words(texts)
        left = [text for text, ids in zip(texts, known, strict=True) if ids is None]
        encodings = iter(self._backend.encode_batch_fast(left, add_special_tokens=False))
        return [np.array(next(encodings).ids, np.uint32) if ids is None else ids for ids in known]

    def located(self, texts: Sequence[str]) -> Iterator[LocatedIds]:
        """Yield the token ids of each text with their positions.

        The tokenizer must be a fast tokenizer.
        """
        assert self._backend is not None
        # Where its tokens are bytes, their sizes say more than the library, which may leave spaces
        # out of a token's place.
        known = self._ids_by_words(texts) if self._words is None else self.ids(texts)
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

    def _ids_by_words(self, texts: Sequence[str]) -> Sequence[Ids | None]:
        return [None] * len(texts) if self._words is None else self._words.ids(texts)

    def _by_bytes(self, text: str, ids: Ids | None) -> LocatedIds | None:
        if ids is None or self._words is None or self._words.is_changed(text):
            return None
        ends = self._words.ends(ids)
        size = len(text) if text.isascii() else len(text.encode())
        if size != (ends[-1] if len(ends) else 0):  # a byte that the vocabulary does not have
            return None
        return LocatedIds(text, ids, np.concatenate([ends[:0], [0], ends[:-1]]), ends, True)


MOST_WORDS = 400_000
"""Largest number of cached words, about 60 MB. A full cache is emptied."""
WORDS_AT_ONCE = 4096
"""Number of new words in a text for the tokenizers library.

It encodes several such texts in parallel.
"""
_END_OF_WORD = 0xFF
"""The byte after each word. It does not occur in UTF-8."""
_BYTE_LEVEL = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""The split pattern of a `ByteLevel` pre-tokenizer with `use_regex`."""
_SPACES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
r"""Unicode's White_Space. Python's `\s` also contains U+001C to U+001F."""
_SYMBOLS = (0x1F300, 0x1F64F)
_PART = re.compile(r"\\p\{(\w+)\}|\\p(\w)|\\[sS]|\\.|\[\^?|\]|[^\\\[\]]+", re.DOTALL)


class WordIds:
    """Encodes texts with a byte-level BPE, and caches the ids of each word.

    A byte-level BPE splits a text into words (pre-tokenizer) and encodes each word alone. Most
    words occur many times, so their ids are cached. Thousands of new words are encoded in one call
    of the tokenizers library, because for a short text the call itself takes longer than the
    encoding.

    Texts must be split exactly as the tokenizer splits them. So the pattern of its pre-tokenizer is
    translated to Python's `re`. The translation is valid for symbols, and for characters with
    Unicode properties that have not changed since Unicode 3.2. The tokenizer itself encodes texts
    with other characters, and texts that its normalizer would change.
    """

    def __init__(self, backend: Any, pattern: str, *, only_nfc: bool) -> None:
        self._backend = backend
        self._words = re.compile(pattern)
        self._only_nfc = only_nfc
        self._known: dict[str, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self._added = {
            token.content: array.array("I", [number]).tobytes() for number, token in added.items()
        }
        self._splits = [_any_of(texts) for texts in _passes(added.values()) if texts]
        self._sizes = _byte_lengths(backend)
        self._by_letters, self._end_of_word = _without_split(backend.model)

    def ids(self, texts: Sequence[str]) -> list[Ids | None]:
        """Return the ids of each text; None for a text that only the tokenizer can encode."""
        parts = [self._parts(text) if self._is_settled(text) else None for text in texts]
        self._learn(set(itertools.chain.from_iterable(filter(None, parts))))
        return [None if words is None else self._joined(words) for words in parts]

    def ends(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return the position after each token of `ids`, in bytes of the UTF-8 text."""
        return np.cumsum(self._sizes[ids])

    def is_changed(self, text: str) -> bool:
        """Return whether the normalizer of the tokenizer would change the text."""
        return self._only_nfc and not unicodedata.is_normalized("NFC", text)

    def _is_settled(self, text: str) -> bool:
        if text.isascii():
            return True
        return not _unsettled().search(text) and not self.is_changed(text)

    def _parts(self, text: str) -> list[str] | None:
        """Split a text into words and added tokens; None if the split pattern is not valid for the
        text.
        """
        pieces = [text]
        for split in self._splits:
            pieces = [
                part
                for piece in pieces
                for part in ((piece,) if piece in self._added else split.split(piece))
                if part
            ]
        words: list[str] = []
        for piece in pieces:
            if piece in self._added:
                words.append(piece)
            else:
                words += self._words.findall(piece)
        return words if sum(map(len, words)) == len(text) else None

    def _learn(self, words: set[str]) -> None:
        new = list(words.difference(self._known))  # `-` goes through all that is known
        if len(self._known) + len(new) > MOST_WORDS:
            self._known.clear()
            new = list(words)
        self._known |= self._added
        new = [word for word in new if word not in self._added]
        parts = [new[at : at + WORDS_AT_ONCE] for at in range(0, len(new), WORDS_AT_ONCE)]
        encodings = self._by_letters.encode_batch_fast(
            [*map(_letters_of, parts)], add_special_tokens=False
        )
        for words_of_part, encoding in zip(parts, encodings, strict=True):
            self._keep(words_of_part, np.array(encoding.ids, np.uint32))

    def _keep(self, words: Sequence[str], ids: Ids) -> None:
        """Put the ids of `words` into the cache.

        `ids` has all ids, with an end-of-word id after each word.
        """
        ends = (ids.itemsize * np.flatnonzero(ids == self._end_of_word)).tolist()
        if len(ends) == len(words):
            data = ids.tobytes()
            starts = [0, *(end + ids.itemsize for end in ends)]
            self._known.update(
                (word, data[start:end])
                for word, start, end in zip(words, starts, ends, strict=False)
            )
            return
        # The vocabulary has another token with the library's number of the end of a word.
        encodings = self._backend.encode_batch_fast(words, add_special_tokens=False)
        for word, found in zip(words, encodings, strict=True):
            self._known[word] = array.array("I", found.ids).tobytes()

    def _joined(self, words: Iterable[str]) -> Ids:
        return np.frombuffer(b"".join(map(self._known.__getitem__, words)), np.uint32)


def word_ids_of(backend: Any) -> WordIds | None:
    """Return a `WordIds` for `backend`, a tokenizer of the tokenizers library.

    Returns None if `backend` is not a byte-level BPE that `WordIds` supports.
    """
    model = backend.model
    if type(model).__name__ != "BPE" or model.dropout or backend.encode_special_tokens:
        return None
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return None
    normalizer = _state(backend.normalizer)
    if normalizer is not None and normalizer != {"type": "NFC"}:
        return None
    pattern = _pattern_of(_state(backend.pre_tokenizer))
    translated = None if pattern is None else translate_pattern(pattern)
    if translated is None:
        return None
    return WordIds(backend, translated, only_nfc=normalizer is not None)


def translate_pattern(pattern: str) -> str | None:
    """Translate a pattern of the tokenizers library into a pattern of Python's `re`.

    The result is valid for characters with Unicode properties that have not changed since Unicode
    3.2. Returns None if a part of the pattern is unknown.
    """
    parts: list[str] = []
    inside = False
    for found in _PART.finditer(pattern):
        text = found[0]
        name = found[1] or found[2]
        if text.startswith("["):
            if inside:
                return None
            inside = True
        elif text == "]":
            inside = False
        elif text == r"\S":
            if inside:
                return None
            text = f"[^{_SPACES}]"
        elif name or text == r"\s":
            ranges = _ranges_of(name) if name else _SPACES
            text = ranges if inside else f"[{ranges}]"
        elif (text.startswith("\\") and text[1].isalnum() and text[1] not in "nrt") or (
            inside and "&&" in text
        ):
            return None
        parts.append(text)
    try:
        compiled = re.compile("".join(parts))
    except re.error:
        return None
    return compiled.pattern if not compiled.groups else None


def _pattern_of(state: Any) -> str | None:
    """Return the pattern with which a pre-tokenizer splits text; None if it does not use exactly
    one pattern.
    """
    if not isinstance(state, dict):
        return None
    steps = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    *splits, last = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if last.get("use_regex", True):
        return None if splits else _BYTE_LEVEL
    if len(splits) != 1 or splits[0]["type"] != "Split":
        return None
    [split] = splits
    if split["behavior"] != "Isolated" or split["invert"]:
        return None
    pattern: str | None = split["pattern"].get("Regex")
    return pattern


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())


def _passes(added: Iterable[Any]) -> list[list[str]]:
    """Divide the texts of the tokens `added` into two lists: the tokens that the tokenizer searches
    for in the original text, and those that it searches for in the normalized text.
    """
    found: list[list[str]] = [[], []]
    for token in added:
        found[bool(token.normalized)].append(token.content)
    return found


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})")


def _without_split(model: Any) -> tuple[Any, int]:
    """Return a tokenizer for texts from `_letters_of`, and the id that marks the end of each word.

    The tokenizer has the BPE `model`, and does not split texts into words.
    """
    from tokenizers import Tokenizer

    made = Tokenizer(model)
    end_of_word = chr(_letters()[_END_OF_WORD])
    made.add_special_tokens([end_of_word])
    number = made.token_to_id(end_of_word)
    assert number is not None
    return made, number


def _letters_of(words: Sequence[str]) -> str:
    """Return `words` as one text in the characters of a byte-level vocabulary.

    The character of the byte `_END_OF_WORD` follows each word.
    """
    data = b"".join(word.encode() + bytes([_END_OF_WORD]) for word in words)
    return _letters()[np.frombuffer(data, np.uint8)].tobytes().decode("utf-16-le")


@cache
def _letters() -> npt.NDArray[np.uint16]:
    """Return 256 code points: the character that represents each byte in a byte-level vocabulary.

    A byte that is a visible character represents itself. Other bytes have characters from U+0100
    on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    found = [each if each in visible else next(others) for each in range(256)]
    found[_END_OF_WORD] = ord(" ")
    return np.array(found, "<u2")


def _byte_lengths(backend: Any) -> npt.NDArray[np.int64]:
    """Return, for each token id, the number of bytes of text that the token stands for."""
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    added = backend.get_added_tokens_decoder()
    sizes = np.zeros(1 + max((*vocabulary.values(), *added)), np.int64)
    sizes[list(vocabulary.values())] = [*map(len, vocabulary)]
    for number, token in added.items():
        sizes[number] = len(token.content.encode())
    return sizes


@cache
def _categories() -> dict[str, list[int]]:
    """Return the code points of each Unicode category, by category name, in ascending order.

    Characters that were in another category in Unicode 3.2 are left out.
    """
    found: dict[str, list[int]] = {}
    old: Callable[[str], str] = unicodedata.ucd_3_2_0.category
    for number in (*range(0xD800), *range(0xE000, 0x10000), *range(_SYMBOLS[0], _SYMBOLS[1] + 1)):
        letter = chr(number)
        category = unicodedata.category(letter)
        if category != "Cn" and (number >= _SYMBOLS[0] or old(letter) == category):
            found.setdefault(category, []).append(number)
    return found


@cache
def _unsettled() -> re.Pattern[str]:
    return re.compile(f"[^{_ranges_of('')}]")


@cache
def _ranges_of(category: str) -> str:
    """Return the characters of a Unicode category as ranges for a `re` pattern.

    `category` is the name of a category or its first letter. Characters that have changed since
    Unicode 3.2 are left out.
    """
    numbers = sorted(
        number
        for name, each in _categories().items()
        if name.startswith(category)
        for number in each
    )
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "".join(f"{_escaped(first)}-{_escaped(last)}" for first, last in ranges)


def _escaped(number: int) -> str:
    return f"\\U{number:08x}"
