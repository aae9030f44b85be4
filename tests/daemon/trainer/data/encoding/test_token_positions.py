"""A token lies in the same place of its text, whichever way the text is encoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerotoolsd.trainer.data.encoding import token_positions
from zerotoolsd.trainer.data.encoding.token_positions import (
    LocatedIds,
    TextIds,
    WordIds,
    word_ids_of,
)

pytestmark = pytest.mark.torch
UNSETTLED = "\U0001f980"
"""A character whose words the library has to find."""


def located(text: str, *, only_nfc: bool = False) -> LocatedIds:
    from tokenizers import normalizers, processors
    from transformers import PreTrainedTokenizerFast

    made: Any = backend(PATTERNS["gpt2"], (("Ġ", "a"), ("Ġ", "Ġ")))
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    if only_nfc:
        made.normalizer = normalizers.NFC()
    [found] = TextIds(PreTrainedTokenizerFast(tokenizer_object=made)).located([text])
    return found


def places(found: LocatedIds, count: int) -> list[list[int]]:
    """Where the first tokens begin and end, in letters."""
    letters = {found.to_unit(letter): letter for letter in range(len(found.text) + 1)}
    both = (found.starts, found.ends)
    return [[letters[each] for each in some[:count].tolist()] for some in both]


@pytest.mark.parametrize("more", ["", "c", UNSETTLED])
def test_a_character_at_the_end_moves_no_token_before_it(more: str) -> None:
    found = located("a a<|x|>b  !" + more)
    assert places(found, 7) == [[0, 1, 3, 8, 9, 10, 11], [1, 3, 8, 9, 10, 11, 12]]


def test_where_the_text_is_changed_first_the_library_says_it() -> None:
    text = f"e\u0301 a{UNSETTLED}"
    found = located(text, only_nfc=True)
    assert not found.in_bytes
    assert found.ends[-1] == len(text)
    assert np.all(np.diff(found.starts) >= 0)


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "gpt2": None,
    "llama3": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}",
    "qwen": rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|\p{{N}}{{1,3}}|{REST}",
}
TEXTS = st.text(st.sampled_from("ab's 12\t\n\r!.éß好\u00a0\u3000\u0301\x1c😀Ⅷ<|x>"), max_size=30)


def backend(pattern: str | None, merges: tuple[tuple[str, str], ...] = (), **options: Any) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, list(merges)))
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    made.pre_tokenizer = pre_tokenizers.Sequence([*split, bytes_of]) if split else bytes_of
    made.add_tokens([AddedToken("<|x|>", normalized=False, special=True, **options)])
    made.add_tokens([AddedToken("<|x", normalized=False)])
    return made


def check(words: WordIds, made: Any, texts: list[str]) -> None:
    for text, ids in zip(texts, words.ids(texts), strict=True):
        whole = made.encode(text, add_special_tokens=False)
        if ids is None:
            assert any(letter in text for letter in "\u0301\U0001f980")
            continue
        assert ids.tolist() == whole.ids
        assert words.ends(ids)[-1:].tolist() == ([len(text.encode())] if text else [])


@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_the_ids_are_those_of_the_library(texts: list[str]) -> None:
    for pattern in PATTERNS.values():
        made = backend(pattern, (("Ġ", "a"), ("Ġa", "b"), ("1", "2"), ("a", "b")))
        words = word_ids_of(made)
        assert words is not None
        check(words, made, texts)


@pytest.mark.full
@pytest.mark.parametrize("name", PATTERNS)
def test_each_character_that_is_settled_is_split_as_the_library_does(name: str) -> None:
    made = backend(PATTERNS[name])
    words = word_ids_of(made)
    assert words is not None
    for letter in (chr(n) for numbers in token_positions._categories().values() for n in numbers):
        for text in (f"a{letter}1{letter}!{letter} {letter}\n", f"'{letter}x{letter}  {letter}"):
            parts = words._parts(text)
            assert parts is not None
            own = made.pre_tokenizer.pre_tokenize_str(text)
            assert [len(part.encode()) for part in parts] == [len(part) for part, _ in own], text


def test_words_begin_anew_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_positions, "MOST_WORDS", 3)
    made = backend(None)
    words = word_ids_of(made)
    assert words is not None
    for text in ("one two", "three four five six", "one<|x|>six"):
        check(words, made, [text, text])


class WithoutBatches:
    """A tokenizer that encodes no list of words, one by one."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:
        assert name != "encode_batch_fast"
        return getattr(self._made, name)


def test_new_words_go_to_the_library_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_positions, "WORDS_AT_ONCE", 3)
    made = backend(None, (("Ġ", "a"), ("1", "2")))
    words = word_ids_of(WithoutBatches(made))
    assert words is not None
    check(words, made, ["a a12 1\u00a0\u3000é好 'll\n  12<|x>", "b  c 123 é\x00\x7f\xa1", ""])


def test_words_are_encoded_by_themselves_where_their_end_has_no_id_of_its_own() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: n + (n >= 70) for n, letter in enumerate(letters)}  # 70 is left out
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert made.get_vocab_size() in vocabulary.values()  # the id of the next token that is added
    words = word_ids_of(made)
    assert words is not None
    check(words, made, [f"{bytes(range(33, 127)).decode()} {chr(0xFF)}"])


def test_a_text_that_would_be_changed_is_left_to_the_library() -> None:
    from tokenizers import normalizers

    made = backend(None)
    made.normalizer = normalizers.NFC()
    words = word_ids_of(made)
    assert words is not None
    assert [ids is None for ids in words.ids(["é", "e\u0301", "a\u1cd0"])] == [False, True, True]


def test_tokenizers_of_other_kinds_are_left_to_the_library() -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    assert word_ids_of(backend(r"\w+|\s+")) is None  # a class that is not known here
    assert word_ids_of(backend(r"(a)|b")) is None
    assert word_ids_of(backend(None, lstrip=True)) is None
    changed = backend(None)
    changed.normalizer = normalizers.Lowercase()
    assert word_ids_of(changed) is None
    other = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    assert word_ids_of(other) is None
