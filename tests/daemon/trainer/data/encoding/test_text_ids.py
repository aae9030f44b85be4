"""A token lies in the same place of its text, whichever way the text is encoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.daemon.trainer.data.encoding.test_word_ids import PATTERNS, backend
from zerotoolsd.trainer.data.encoding.text_ids import LocatedIds, TextIds

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
    letters = {found.place(letter): letter for letter in range(len(found.text) + 1)}
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
