"""Words of a text in any script, for scores that compare words.

Scripts that put no spaces between words (Chinese, Japanese, Thai and their like) are taken letter
by letter, all others by words, in lower case and without punctuation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_OTHER = (
    "\u3041-\u309f\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai and Lao, Burmese, Khmer
)
_IS_HAN, _IS_OTHER = re.compile(f"[{_HAN}]"), re.compile(f"[{_OTHER}]")
_IS_UNSPACED = re.compile(f"[{_HAN}{_OTHER}]")


class ScoreTokenizer:
    """A tokenizer for rouge_score. Its own one drops all characters that are not ASCII."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words of `text`."""
        found: list[str] = []
        word = ""
        for letter in text.lower():
            is_alone = _IS_UNSPACED.match(letter) is not None
            if not is_alone and _is_part_of_word(letter):
                word += letter
                continue
            if word:
                found.append(word)
                word = ""
            if is_alone and _is_part_of_word(letter):
                found.append(letter)
        return [*found, word] if word else found


def _is_part_of_word(letter: str) -> bool:
    return letter.isalnum() or unicodedata.category(letter).startswith("M")


def bleu_tokenizer(texts: Iterable[str]) -> str:
    """Return the name of sacrebleu's tokenizer for `texts`.

    It is `"char"` if at least a quarter of the letters are of a script without spaces other than
    Chinese, else `"zh"` if there are Chinese ones, else `"13a"`.
    """
    letters = han = other = 0
    for text in texts:
        letters += sum(map(str.isalnum, text))
        han += len(_IS_HAN.findall(text))
        other += len(_IS_OTHER.findall(text))
    if other and 4 * other >= letters:
        return "char"
    return "zh" if han else "13a"
