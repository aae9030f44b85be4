"""Words in any script; of English those that rouge_score itself would take."""

from __future__ import annotations

import pytest

from zerotoolsd.trainer.evaluation.scores import ScoreTokenizer, bleu_tokenizer

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("这条裙子，很好看。", ["这", "条", "裙", "子", "很", "好", "看"]),
        ("GPT-2模型 v1.5", ["gpt", "2", "模", "型", "v1", "5"]),
        ("ひらがなカナ", list("ひらがなカナ")),
        ("한국어 문장", ["한국어", "문장"]),
        ("Über größe_naïve", ["über", "größe", "naïve"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("\U00020000\ufffd 。!", ["\U00020000"]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert ScoreTokenizer().tokenize(text) == words


def test_english_words_are_those_of_rouge_score() -> None:
    from rouge_score.tokenizers import DefaultTokenizer

    text = "It's 3.5 times: the QUICK_brown fox -- (jumps) over 12 dogs!"
    assert ScoreTokenizer().tokenize(text) == DefaultTokenizer(use_stemmer=False).tokenize(text)


@pytest.mark.parametrize(
    ("texts", "tokenizer"),
    [
        (["the dress is red"], "13a"),
        (["the dress is red", "红色的裙子"], "zh"),
        (["この裙はとても赤い"], "char"),
        (["a long English sentence with one ア in it", "红"], "zh"),
        (["a long English sentence with one ア in it"], "13a"),
        ([""], "13a"),
    ],
)
def test_the_tokenizer_of_bleu_follows_the_references(texts: list[str], tokenizer: str) -> None:
    assert bleu_tokenizer(texts) == tokenizer
