"""Where a generated text ends, and what of an example is its prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job
from tests.daemon.trainer.finetuning import TEMPLATE, load, make_tokenizer
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.trainer.data.example_pools import IGNORED, Example
from zerotoolsd.trainer.engine.text_generation import Decoding, make_decoding, split_prompt

pytestmark = pytest.mark.torch


def decoding(directory: Path, new: int | None = 9, **data: Any) -> Decoding:
    """That of a job on the model in `directory`, of so many `positions`."""
    positions = data.pop("positions", 64)
    from transformers import AutoConfig

    tree = job(Path("/text"), eval={"fraction": 0.1, "predict_with_generate": True})
    if new is not None:
        tree["eval"]["max_new_tokens"] = new
    tree["model"] = {"path": str(directory)}
    tree["data"] = {"examples": ["/e.json"], **data}
    spec = job_from_dict(tree, source="job")
    return make_decoding(spec, load(directory), AutoConfig.for_model(**TINY_LLAMA), positions)


def test_a_text_ends_as_in_training(tmp_path: Path) -> None:
    plain = decoding(make_tokenizer(tmp_path / "plain"))
    assert plain == Decoding(max_new_tokens=9, num_beams=1, ends=(2,), filler=0, ids={})
    chat = make_tokenizer(tmp_path / "chat", template=TEMPLATE)
    assert decoding(chat).ends == (2, load(chat).convert_tokens_to_ids("<|end|>"))


def test_how_many_tokens_are_generated(tmp_path: Path) -> None:
    """By default 256, where the model has positions for a prompt beside them; an older job goes on
    with the length of its responses."""
    path = make_tokenizer(tmp_path)
    older = {"truncation": "separate", "max_source_length": 7, "loss_on": "last"}
    assert decoding(path, None).max_new_tokens == 32
    assert decoding(path, None, positions=1024).max_new_tokens == 256
    assert decoding(path, None, positions=None).max_new_tokens == 256
    assert decoding(path, None, **older, max_target_length=128).max_new_tokens == 128


def test_of_a_generation_config_the_ids_count_alone(tmp_path: Path) -> None:
    directory = make_tokenizer(tmp_path)
    keys = {"eos_token_id": [2, 7], "do_sample": True, "num_beams": 5, "forced_bos_token_id": 8}
    (directory / "generation_config.json").write_text(json.dumps(keys))
    found = decoding(directory)
    assert (found.ends, found.num_beams, found.ids) == ((2, 7), 1, {"forced_bos_token_id": 8})


@pytest.mark.parametrize(
    ("example", "encoder_decoder", "pair"),
    [
        (Example([1, 5, 6, 7], [IGNORED, 6, 7, 2]), False, ([1, 5], [6, 7, 2])),
        (Example([1, 5], [IGNORED, 2]), False, ([1, 5], [2])),
        (
            Example([1, 5, 6, 9, 8, 7], [5, IGNORED, 9, IGNORED, 7, 2]),
            False,
            ([1, 5, 6, 9, 8], [7, 2]),
        ),
        (Example([1, 5, 2], [6, 7]), True, ([1, 5, 2], [6, 7])),
    ],
)
def test_prompt_and_response(
    example: Example, encoder_decoder: bool, pair: tuple[list[int], list[int]]
) -> None:
    assert split_prompt(example, encoder_decoder=encoder_decoder) == pair
