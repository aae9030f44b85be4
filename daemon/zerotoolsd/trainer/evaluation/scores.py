"""ROUGE by rouge_score and BLEU by sacrebleu, in per cent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.files.packages import EXTRAS, install_command
from zerotoolsd.trainer.evaluation.words import ScoreTokenizer, bleu_tokenizer

ROUGES = ("rouge1", "rouge2", "rougeL")
LIBRARIES = ("rouge_score", "sacrebleu")


@dataclass(frozen=True)
class Scores:
    """Means over the examples of ROUGE's F-measures, and BLEU of all of them as one corpus, by
    sacrebleu's `tokenizer`; 0 to 100."""

    rouge1: float
    rouge2: float
    rougeL: float
    bleu: float
    tokenizer: str

    def values(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {name: getattr(self, name) for name in (*ROUGES, "bleu")}

    def __str__(self) -> str:
        return (
            f"ROUGE-1 {self.rouge1:.2f}  ROUGE-2 {self.rouge2:.2f}  ROUGE-L {self.rougeL:.2f}  "
            f"BLEU {self.bleu:.2f} ({self.tokenizer})"
        )


def check_libraries(names: Sequence[str] = LIBRARIES) -> None:
    """Check the libraries.

    Raises:
        BadRequest: one of them is missing.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise BadRequest(
            f"eval.predict_with_generate = true: {sys.executable} has no {' and no '.join(missing)}"
            f"; run {install_command(*EXTRAS['scores'].values())}"
        )


def score(predictions: Sequence[str], references: Sequence[str]) -> Scores:
    """Return the scores of `predictions` against `references`, one to one."""
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
