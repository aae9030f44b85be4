"""Predictions beside the generation itself: scores, a stop, a full disk, what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.trainer.finetuning import load, make_tokenizer
from zerotools.core.errors import BadRequest
from zerotools.io.telemetry.step_metrics_files import Metrics
from zerotoolsd.trainer.data.encoding.encoded_example import Encoded, as_ids, mark_learned
from zerotoolsd.trainer.data.example_store import Examples, write_examples
from zerotoolsd.trainer.engine.text_generation import Decoding
from zerotoolsd.trainer.evaluation.evaluate import (
    EvaluationResult,
    GenerationResult,
    TextGeneration,
)
from zerotoolsd.trainer.evaluation.scores import LIBRARIES, check_libraries
from zerotoolsd.trainer.rank.notify_supervisor import Notifier
from zerotoolsd.trainer.rank.rank_settings import Rank
from zerotoolsd.trainer.reporting.reporter import Reporter

pytestmark = pytest.mark.torch
DECODING = Decoding(max_new_tokens=4, num_beams=1, ends=(2,), filler=0, ids={})
COUNT = 5
NAMES = ("rouge1", "rouge2", "rougeL", "bleu")


class Alone:
    """The group of one rank."""

    rank = Rank(0, 0, 1)

    def gathered(self, value: Any) -> list[Any]:
        return [value]

    def decided_by_rank_zero(self, decide: Callable[[], Any]) -> Any:
        return decide()


class Parrot:
    """An engine that says what it is asked."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def generate(self, prompts: Sequence[list[int]], decoding: Decoding) -> list[list[int]]:
        self.batches.append(len(prompts))
        return [list(prompt) for prompt in prompts]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return load(make_tokenizer(tmp_path / "tokenizer"))


def predictions(directory: Path, tokenizer: Any) -> TextGeneration:
    ids = tokenizer(["the red dress"] * COUNT)["input_ids"]
    examples = [
        Encoded("a:1", np.append(as_ids(ask), mark_learned(as_ids([*ask[1:], 2]))), len(ask))
        for ask in ids
    ]
    write_examples(examples, directory / "ids", encoder_decoder=False)
    pool = Examples(directory / "ids", encoder_decoder=False)
    return TextGeneration(pool, COUNT, 2, False, DECODING, directory / "predictions", tokenizer)


def run(wanted: TextGeneration, engine: Parrot, *, stop: bool = False) -> GenerationResult | None:
    group: Any = Alone()
    talking: Any = engine
    return wanted.run(talking, group, 7, lambda: None, lambda: stop)


def test_predictions_are_scored_and_written(tmp_path: Path, tokenizer: Any) -> None:
    engine = Parrot()
    found = run(predictions(tmp_path, tokenizer), engine)
    assert found is not None
    assert (engine.batches, found.examples) == ([2, 2, 1], COUNT)
    assert list(found.scores.values().values()) == pytest.approx([100.0, 100.0, 100.0, 0.0])
    assert found.path == str(tmp_path / "predictions/step-00000007.jsonl")
    assert [json.loads(line) for line in Path(found.path).read_text().splitlines()] == [
        {
            "step": 7,
            "example": number,
            "prompt": "<s>the red dress",
            "reference": "the red dress",
            "prediction": "the red dress",
        }
        for number in range(COUNT)
    ]
    assert found.fields()["predictions"] == found.path


def test_scores_are_reported_with_the_loss(
    tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(Alone.rank, Notifier(None, 0), steps=9)
    reporter.write_to(Metrics(tmp_path, tensorboard="off"))
    predicted = run(predictions(tmp_path, tokenizer), Parrot())
    reporter.evaluated(7, EvaluationResult(0.5, COUNT, 30, 0.1, predicted))
    reporter.evaluated(8, EvaluationResult(1000.0, COUNT, 30, 0.1))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line.pop("time") > 0 for line in lines] == [True, True]
    assert lines[0].keys() == {"step", *(f"eval_{name}" for name in ("loss", "perplexity", *NAMES))}
    assert (lines[0]["step"], lines[0]["eval_loss"]) == (7, 0.5)
    assert lines[0]["eval_rougeL"] == pytest.approx(100.0)
    assert lines[1] == {"step": 8, "eval_loss": 1000.0}
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("evaluated step 7: loss 0.5000  perplexity 1.6487")
    assert said[1].startswith("predicted step 7: ROUGE-1 100.00  ROUGE-2 100.00  ROUGE-L 100.00")
    assert said[1].endswith("step-00000007.jsonl")
    assert len(said) == 3


def test_a_stop_is_not_kept_waiting(tmp_path: Path, tokenizer: Any) -> None:
    engine = Parrot()
    assert run(predictions(tmp_path, tokenizer), engine, stop=True) is None
    assert engine.batches == [2]
    assert not (tmp_path / "predictions").exists()


def test_predictions_that_cannot_be_written_cost_no_scores(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "predictions").touch()
    found = run(predictions(tmp_path, tokenizer), Parrot())
    assert found is not None
    assert found.scores.rougeL == pytest.approx(100.0)
    assert found.path is None
    assert "texts not written (" in str(found)
    assert str(tmp_path / "predictions") in str(found.problem)


def test_what_does_not_fit_into_the_model_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    wanted = predictions(tmp_path, tokenizer)
    longest = len(tokenizer("the red dress")["input_ids"])
    wanted.check_lengths(longest + 4)
    wanted.check_lengths(None)
    with pytest.raises(
        BadRequest, match=f" {longest + 3} positions: set eval.max_new_tokens to 3 at most"
    ) as info:
        wanted.check_lengths(longest + 3)
    assert "eval.max_new_tokens = 4" in str(info.value)


def test_a_long_prompt_gives_way_to_what_is_generated(tmp_path: Path, tokenizer: Any) -> None:
    whole = predictions(tmp_path, tokenizer)
    assert whole.note() is None
    length = len(tokenizer("the red dress")["input_ids"])
    wanted = replace(whole, longest_prompt=length - 2)
    assert wanted.note() == (
        f"eval: 5 prompts of 5 cut to the last {length - 2} tokens, so that 4 tokens can be "
        "generated (eval.max_new_tokens); 10 tokens lost"
    )
    wanted.check_lengths(length + 2)
    found = run(wanted, Parrot())
    assert found is not None
    [row, *_] = Path(str(found.path)).read_text().splitlines()
    assert json.loads(row)["prompt"] == "the red dress"[-len(json.loads(row)["prompt"]) :]
    assert json.loads(row)["reference"] == "the red dress"


def test_missing_libraries_are_named() -> None:
    check_libraries()
    with pytest.raises(BadRequest, match=r"no_such_scores; run .* 'sacrebleu>=2.4'"):
        check_libraries((*LIBRARIES, "no_such_scores"))
