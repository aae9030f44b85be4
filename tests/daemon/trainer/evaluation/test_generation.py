"""Evaluation by generation, on real ranks: what a model has learned by heart it says, at every
stage, and training does not notice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2
from tests.daemon.trainer.finetuning import write_lines
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.test_finetuning import Jobs
from tests.daemon.trainer.torch_releases import HAS_TENSOR_RANKS, needs_tensor_ranks
from tests.matrices import FULL
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU
from zerotools.runs import find_job_checkpoints

pytestmark = [pytest.mark.torch, pytest.mark.dear(25, "a model learns a sentence by heart")]
LEARNED = 40
HALF_WAY = LEARNED // 2
SCORES = ("rouge1", "rouge2", "rougeL", "bleu")
MORE: dict[str, tuple[int, dict[str, Any]]] = {
    "stage-1": (1, {"train": {"precision": "bf16"}, "eval": {"num_beams": 3}}),
    "again": (3, {"train": {"activation_checkpointing": True}}),
    "stage-2": (2, {"train": {"precision": "fp16"}, "env": {FP16_ON_CPU: "1"}}),
}
"""Of the full matrix alone: others have sharded weights and beams, and 16 bits change no word."""
SAID_BY = ("stage-3", "sequences", *(MORE if FULL else ()))
PAIRS = [
    {"content": "裙子", "summary": "红色很好看"},
    {"content": "这条裙子", "summary": "它是蓝色"},
    {"content": "red or black?", "summary": "not so red, 很黑 it is"},
]


def learning(make: Jobs, **changes: Any) -> dict[str, Any]:
    """By heart. On two ranks, one of them has nothing in the last turn."""
    train = {"steps": LEARNED, "batch_size": 4, "learning_rate": 1e-2, **changes.pop("train", {})}
    wanted = {"files": [make.train], "predict_with_generate": True, "max_new_tokens": 24}
    wanted |= changes.pop("eval", {})
    data = {"tokenizer": make.chat}
    return make.of(data=data, train=train, eval=wanted, **changes)


def jobs(directory: Path, out: Path) -> dict[str, dict[str, Any]]:
    make = Jobs(directory)
    write_lines(Path(make.train), PAIRS)
    source = str(out / "learned" / "out" / find_job_checkpoints.directory_name(LEARNED))

    def then(stage: int, **changes: Any) -> dict[str, Any]:
        train = {"steps": LEARNED + 1, **changes.pop("train", {})}
        zero = {"stage": stage, **changes.pop("zero", {})}
        return learning(make, zero=zero, resume_from=source, train=train, **changes)

    def gpt2(**changes: Any) -> dict[str, Any]:
        """It drops out."""
        return make.of({**TINY_GPT2, "n_positions": 256}, train={"steps": 3}, **changes)

    asked = {"files": [make.other], "every": 1, "predict_with_generate": True, "num_beams": 2}
    layers = {"layers": then(3, zero={"tensor_ranks": 2}, eval={"num_beams": 2})}
    return {
        "learned": learning(make, zero={"stage": 0}, eval={"every": HALF_WAY, "batch_size": 3}),
        "stage-3": then(3, offload={"params": "cpu"}),
        **(layers if HAS_TENSOR_RANKS else {}),
        "sequences": then(2, zero={"sequence_ranks": 2}),
        "with": gpt2(eval={**asked, "max_new_tokens": 8, "max_predictions": 3}),
        "without": gpt2(),
        **(
            {name: then(stage, **changes) for name, (stage, changes) in MORE.items()}
            if FULL
            else {}
        ),
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """All on two ranks."""
    directory = tmp_path_factory.mktemp("generation") / "runs"
    every = jobs(tmp_path_factory.mktemp("data"), directory / "out")
    return run_all(directory, text, 2, every, ends=("learned",))


def predicted(runs: Runs, name: str, step: int) -> dict[str, Any]:
    found: dict[str, Any] = runs.report[name]["evaluations"][str(step)]["predicted"]
    return found


def rows(runs: Runs, name: str, step: int) -> list[dict[str, Any]]:
    path = Path(predicted(runs, name, step)["path"])
    assert path == runs.directory / name / "out" / "predictions" / f"step-{step:08d}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_what_is_known_by_heart_is_said(runs: Runs) -> None:
    first, last = rows(runs, "learned", HALF_WAY), rows(runs, "learned", LEARNED)
    assert [row["prediction"] for row in first] != [pair["summary"] for pair in PAIRS]
    assert last == [
        {
            "step": LEARNED,
            "example": number,
            "prompt": f"<|user|>{pair['content']}<|end|><|assistant|>",
            "reference": pair["summary"],
            "prediction": pair["summary"],
        }
        for number, pair in enumerate(PAIRS)
    ]
    scores = predicted(runs, "learned", LEARNED)["scores"]
    assert [scores[name] for name in SCORES] == pytest.approx([100.0] * 4)


@pytest.mark.parametrize("name", [*SAID_BY, pytest.param("layers", marks=needs_tensor_ranks)])
def test_it_is_said_at_every_stage_precision_place_and_mesh(runs: Runs, name: str) -> None:
    said = [row["prediction"] for row in rows(runs, name, LEARNED + 1)]
    assert said == [pair["summary"] for pair in PAIRS]
    assert runs.losses(name)[0] < 0.1


def test_the_scores_are_those_of_the_libraries(runs: Runs) -> None:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu import corpus_bleu

    def words(text: str) -> str:
        """What the library's own tokenizer takes for the same words."""
        spaced = re.sub("([\u4e00-\u9fff])", lambda found: f" u{ord(found[1]):x} ", text)
        return spaced.encode("ascii", "replace").decode()

    found, lines = predicted(runs, "learned", HALF_WAY), rows(runs, "learned", HALF_WAY)
    scorer = RougeScorer(SCORES[:3])
    single = [scorer.score(words(row["reference"]), words(row["prediction"])) for row in lines]
    for name in SCORES[:3]:
        mean = sum(each[name].fmeasure for each in single) / len(single)
        assert found["scores"][name] == pytest.approx(100 * mean)
        assert 0 < mean < 1
    said, references = ([row[key] for row in lines] for key in ("prediction", "reference"))
    by_hand = corpus_bleu(said, [references], tokenize="zh").score
    assert found["scores"]["bleu"] == pytest.approx(by_hand)
    assert found["scores"]["tokenizer"] == "zh"


def test_training_does_not_notice(runs: Runs) -> None:
    assert len(rows(runs, "with", 1)) == 3
    assert runs.report["with"]["evaluations"]["1"]["sequences"] == 7
    assert runs.losses("with") == runs.losses("without")
    assert runs.ended("with") == runs.ended("without")
