"""Computes ROUGE (with rouge_score) and BLEU (with sacrebleu) of generated texts in any writing
system.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import EXTRAS, install_command

ROUGES = ("rouge1", "rouge2", "rougeL")
LIBRARIES = ("rouge_score", "sacrebleu")


@dataclass(frozen=True)
class Scores:
    """Scores from 0 to 100: the averages of ROUGE's F-measures, and BLEU of all texts as one
    corpus.

    `tokenizer` is the name of sacrebleu's tokenizer.
    """

    rouge1: float
    rouge2: float
    rougeL: float
    bleu: float
    tokenizer: str

    def values(self) -> dict[str, float]:
        """Return the four scores keyed by name."""
        return {name: getattr(self, name) for name in (*ROUGES, "bleu")}

    def __str__(self) -> str:
        return (
            f"ROUGE-1 {self.rouge1:.2f}  ROUGE-2 {self.rouge2:.2f}  ROUGE-L {self.rougeL:.2f}  "
            f"BLEU {self.bleu:.2f} ({self.tokenizer})"
        )


def check_libraries(names: Sequence[str] = LIBRARIES) -> None:
    """Check that the libraries `names` are installed.

    Raises:
        BadRequest: a library is missing.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise BadRequest(
            f"eval.predict_with_generate = true: {sys.executable} has no {' and no '.join(missing)}"
            f"; run {install_command(*EXTRAS['scores'].values())}"
        )


def score_predictions(predictions: Sequence[str], references: Sequence[str]) -> Scores:
    """Compute the scores of the generated texts `predictions`.

    `references` has the correct text for each prediction.
    """
    from rouge_score.rouge_scorer import RougeScorer  # only evaluation by generation pays for them
    from sacrebleu import corpus_bleu

    scorer: Any = RougeScorer(ROUGES, tokenizer=ScoreTokenizer())
    sums = dict.fromkeys(ROUGES, 0.0)
    for prediction, reference in zip(predictions, references, strict=True):
        for name, found in scorer.score(reference, prediction).items():
            sums[name] += float(found.fmeasure)
    tokenizer = bleu_tokenizer(references)
    # With force, because else it warns about texts that look tokenised.
    bleu = corpus_bleu(list(predictions), [list(references)], tokenize=tokenizer, force=True)
    means = {name: 100 * total / len(references) for name, total in sums.items()}
    return Scores(**means, bleu=float(bleu.score), tokenizer=tokenizer)


_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_OTHER = (
    "\u3041-\u309f\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai and Lao, Burmese, Khmer
)
_IS_HAN, _IS_OTHER = re.compile(f"[{_HAN}]"), re.compile(f"[{_OTHER}]")
_IS_UNSPACED = re.compile(f"[{_HAN}{_OTHER}]")


class ScoreTokenizer:
    """Splits a text into words for rouge_score, in lower case and without punctuation.

    In writing systems without spaces between words (Chinese, Japanese, Thai and others), each
    character counts as a word. rouge_score's own tokenizer drops all characters that are not ASCII.
    """

    def tokenize(self, text: str) -> list[str]:
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

    It is `"char"` if at least a quarter of the letters belong to writing systems without spaces,
    not counting Chinese; `"zh"` if there are Chinese letters; else `"13a"`.
    """
    letters = han = other = 0
    for text in texts:
        letters += sum(map(str.isalnum, text))
        han += len(_IS_HAN.findall(text))
        other += len(_IS_OTHER.findall(text))
    if other and 4 * other >= letters:
        return "char"
    return "zh" if han else "13a"
