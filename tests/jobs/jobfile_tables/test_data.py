"""What `[data]` refuses beside what its types say: weights, formats, columns, lengths."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.data import DataSpec, check_data, fixed_length, longest_sequence

EXAMPLES = {"examples": ("/a.json", "/b.json")}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({**EXAMPLES, "mixture": (0.5, 0.4)}, "the weights add up to 0.9, but must add up to 1"),
        ({**EXAMPLES, "mixture": (1.0,)}, "has 1 weights, but data.examples has 2 entries"),
        ({**EXAMPLES, "mixture": (1.5, -0.5)}, "each weight must be above 0"),
        ({**EXAMPLES, "truncation": "separate"}, "data.max_source_length is missing"),
        ({**EXAMPLES, "format": "messages", "prompt_column": "q"}, "data.prompt_column = "),
        ({**EXAMPLES, "format": "columns", "tools_column": "t"}, "data.tools_column = "),
        ({**EXAMPLES, "input_column": "response"}, "must differ, but are"),
        ({"preferences": ("/a",), "packing": True}, "data.packing = true: cannot be combined with"),
        ({"preferences": ("/a",), "loss_on": "last"}, "cannot be combined with data.preferences"),
        ({**EXAMPLES, "chosen_column": "c"}, "cannot be combined with data.examples"),
        ({"preferences": ("/a",), "chosen_column": "rejected"}, "must differ, but are"),
        ({"text": ("/a",), "loss_on": "last"}, 'data.loss_on = "last": cannot be combined with'),
        ({**EXAMPLES, "documents": "on"}, 'data.documents = "on": cannot be combined with'),
        (
            {
                **EXAMPLES,
                "truncation": "separate",
                "max_source_length": 5,
                "max_target_length": 5,
            },
            'learns only from the last answer; set data.loss_on = "last"',
        ),
    ],
)
def test_a_refusal_names_the_keys(keys: dict[str, Any], sentence: str) -> None:
    assert any(sentence in problem for problem in check_data(DataSpec(**keys)))


def test_what_can_be_is_taken() -> None:
    thirds = {**EXAMPLES, "examples": ("/a", "/b", "/c"), "mixture": (0.3333, 0.3333, 0.3333)}
    assert list(check_data(DataSpec(**thirds))) == []
    assert list(check_data(DataSpec(**EXAMPLES, messages_column="chat", tools_column="t"))) == []


def test_how_long_sequences_are() -> None:
    text, one = DataSpec(text=("/a",)), DataSpec(**EXAMPLES)
    assert (fixed_length(text, 64), longest_sequence(text, None)) == (256, 256)
    assert (fixed_length(one, 64), longest_sequence(one, 64)) == (None, 64)
    packed = DataSpec(**EXAMPLES, packing=True)
    assert (fixed_length(packed, 64), fixed_length(packed, None)) == (64, None)
    bound = DataSpec(**EXAMPLES, sequence_length=32)
    assert longest_sequence(bound, 64) == 32
    older = DataSpec(
        **EXAMPLES,
        truncation="separate",
        max_source_length=1024,
        max_target_length=128,
        sequence_length=256,
    )
    assert longest_sequence(older, 64) == 1152


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (
            {"path": "/m"},
            "set its path, or remove data.tokenizer to use the tokenizer of model.path",
        ),
        ({"config": {"model_type": "llama"}}, "set its path"),
    ],
)
def test_bytes_are_no_tokens_of_examples(model: dict[str, Any], advice: str) -> None:
    tree: dict[str, Any] = {
        "device": "cpu",
        "ranks": 1,
        "model": model,
        "data": {"preferences": ["/p.jsonl"], "tokenizer": "bytes"},
        "train": {"steps": 1, "batch_size": 1, "learning_rate": 1e-3},
    }
    with pytest.raises(ZerotoolsError) as caught:
        job_from_dict(tree, source="job")
    said = 'data.tokenizer = "bytes": data.preferences needs a Hugging Face tokenizer'
    assert f"{said}; {advice}" in str(caught.value)
