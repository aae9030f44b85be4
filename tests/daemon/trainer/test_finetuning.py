"""Fine-tuning on examples: the same loss curve however it is spread, packed or resumed.

Tolerance in fp32 on gloo, as in test_training: the order of summation.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from tests.daemon.trainer.finetuning import (
    TEMPLATE,
    VOCABULARY,
    adverts,
    make_tokenizer,
    write_lines,
)
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools.runs import find_job_checkpoints

pytestmark = [pytest.mark.torch, pytest.mark.dear(40, "two numbers of ranks")]
TOLERANCE = 2e-6
TINY_T5 = {
    "model_type": "t5",
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
COUNT = 40
ALIKE = ("stage-3", "t5", "packed", *(("chat", "gpt2") if FULL else ()))
"""On one rank, too: of the full matrix another tokenizer and other names of positions."""
FEW = ALIKE[:3] if FULL else ()
"""On three ranks; two do not divide all that is evaluated either."""


class Jobs:
    """Changes to the tests' job that make it one of fine-tuning."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plain = str(make_tokenizer(directory / "plain"))
        self.chat = str(make_tokenizer(directory / "chat", template=TEMPLATE))
        self.seq2seq = str(make_tokenizer(directory / "seq2seq", seq2seq=True))
        self.train = str(write_lines(directory / "train.json", adverts(COUNT)))
        self.other = str(write_lines(directory / "dev.json", adverts(7)))

    def of(self, model: dict[str, Any] = TINY_LLAMA, **changes: Any) -> dict[str, Any]:
        data = {
            "text": [],
            "examples": [self.train],
            "prompt_column": "content",
            "response_column": "summary",
            "tokenizer": self.plain,
        }
        positions = {"n_positions" if model is TINY_GPT2 else "max_position_embeddings": 256}
        config = {**model, "vocab_size": VOCABULARY, **({} if model is TINY_T5 else positions)}
        train = {"steps": 4, "learning_rate": 3e-3, **changes.pop("train", {})}
        data |= changes.pop("data", {})
        return {"model": {"config": config}, "data": data, "train": train, **changes}

    def of_directory(self) -> dict[str, Any]:
        """On weights in a directory that has the tokenizer too; they find all tokens alike."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(**TINY_LLAMA | {"vocab_size": VOCABULARY})
        config.max_position_embeddings = 256
        model = AutoModelForCausalLM.from_config(config)
        torch.nn.init.zeros_(model.lm_head.weight)
        path = make_tokenizer(self.directory / "model")
        model.save_pretrained(path)
        changed = self.of(train={"steps": 2}, checkpoint={"every": 2})
        del changed["data"]["tokenizer"]
        return {**changed, "model": {"path": str(path)}}


def jobs(directory: Path, out: Path) -> dict[str, dict[str, Any]]:
    make = Jobs(directory)
    held = {"files": [make.other], "every": 2}
    said = {"predict_with_generate": True, "max_new_tokens": 6}
    still = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    packed = {"packing": True, "sequence_length": 200}
    half = str(out / "stage-1" / "out" / find_job_checkpoints.directory_name(2))
    every = {
        "stage-3": make.of(eval={**held, "batch_size": 3, **said}),
        "stage-1": make.of(zero={"stage": 1}, eval=held, checkpoint={"every": 2}),
        "pieces": make.of(train={"micro_batch_size": 1}),
        "again": make.of(zero={"stage": 1}, resume_from=half),
        "chat": make.of(data={"tokenizer": make.chat}, eval={"fraction": 0.2, **said}),
        "t5": make.of(
            TINY_T5,
            data={"tokenizer": make.seq2seq},
            eval={**held, "max_sequences": 5, **said, "num_beams": 2},
        ),
        "directory": make.of_directory(),
        "epochs": make.of(train={"steps": None, "epochs": 0.5}),
        "packed": make.of(data=packed, train={"steps": None, "epochs": 2.0, "batch_size": 6}),
    }
    if FULL:
        of_gpt2 = {**TINY_GPT2, **still}
        every["gpt2"] = make.of(of_gpt2, data=packed, train={"steps": 3, "batch_size": 6})
    return every


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, Runs]:
    """By number of ranks."""
    found = {}
    for ranks in (1, 2, 3) if FEW else (1, 2):
        directory = tmp_path_factory.mktemp(f"ranks-{ranks}") / "runs"
        chosen = jobs(tmp_path_factory.mktemp("data"), directory / "out")
        names = {1: ALIKE, 2: tuple(chosen), 3: FEW}[ranks]
        chosen = {name: chosen[name] for name in names}
        found[ranks] = run_all(directory, text, ranks, chosen, ends=False, asked=("evaluates",))
        assert list(directory.rglob("*.u32*")) == []  # tokens go with the ranks
    return found


@pytest.mark.parametrize(
    ("ranks", "name"), [*((2, name) for name in ALIKE), *((3, name) for name in FEW)]
)
def test_the_curves_are_those_of_one_rank(runs: dict[int, Runs], ranks: int, name: str) -> None:
    alone, spread = runs[1], runs[ranks]
    assert spread.losses(name) == pytest.approx(alone.losses(name), rel=TOLERANCE)
    assert evaluated(spread, name) == pytest.approx(evaluated(alone, name), rel=TOLERANCE)


@pytest.mark.parametrize("name", ALIKE)
def test_the_loss_falls_and_begins_where_evaluation_finds_it(
    runs: dict[int, Runs], name: str
) -> None:
    losses = runs[2].losses(name)
    assert losses[0] == pytest.approx(runs[2].report[name]["evaluated"], rel=TOLERANCE)
    assert losses[-1] < losses[0] - 0.3


def test_a_stage_and_small_pieces_change_nothing(runs: dict[int, Runs]) -> None:
    losses = runs[2].losses("stage-3")
    assert runs[2].losses("stage-1") == pytest.approx(losses, rel=TOLERANCE)
    assert runs[2].losses("pieces") == pytest.approx(losses, rel=TOLERANCE)


def test_a_resumed_run_is_the_uninterrupted_one(runs: dict[int, Runs]) -> None:
    assert runs[2].losses("again") == runs[2].losses("stage-1")[2:]
    assert runs[2].ended("again") == runs[2].ended("stage-1")


def test_a_directory_gives_weights_and_tokenizer(runs: dict[int, Runs]) -> None:
    losses = runs[2].losses("directory")
    assert losses[0] == pytest.approx(math.log(VOCABULARY), rel=TOLERANCE)
    assert losses[1] < losses[0]
    assert (runs[2].checkpoint("directory", 2) / "tokenizer.json").is_file()


def test_what_is_evaluated_and_when(runs: dict[int, Runs]) -> None:
    assert list(evaluated(runs[2], "stage-3")) == ["2", "4"]
    assert runs[2].report["stage-3"]["evaluations"]["4"]["sequences"] == 7
    assert runs[2].report["chat"]["evaluations"]["4"]["sequences"] == COUNT * 0.2
    assert runs[2].report["t5"]["evaluations"]["2"]["sequences"] == 5


@pytest.mark.parametrize(
    ("ranks", "name"),
    [*((2, name) for name in ("stage-3", "t5", *ALIKE[3:4])), *((3, name) for name in FEW[:2])],
)
def test_the_same_is_generated_at_every_number_of_ranks(
    runs: dict[int, Runs], ranks: int, name: str
) -> None:
    alone, spread = (
        (runs[number].directory / name / "out/predictions/step-00000004.jsonl").read_text("utf-8")
        for number in (1, ranks)
    )
    assert spread == alone
    assert len(alone.splitlines()) == {"stage-3": 7, "t5": 5, "chat": COUNT * 0.2}[name]


def test_epochs_are_counted_in_what_is_trained_on(runs: dict[int, Runs]) -> None:
    assert len(runs[2].losses("epochs")) == math.ceil(0.5 * COUNT / 12)
    # Packed, the same tokens take fewer sequences.
    assert len(runs[2].losses("packed")) < 2 * COUNT / 6


def evaluated(runs: Runs, name: str) -> dict[str, float]:
    found = runs.report[name]["evaluations"]
    return {step: evaluation["loss"] for step, evaluation in found.items()}
