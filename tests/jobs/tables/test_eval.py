"""Evaluation by generation that cannot be is refused, naming the keys that disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import job
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict

EXAMPLES = {"text": [], "examples": ["/e.json"], "tokenizer": "/tokenizer"}
ASKED = {"files": ["/dev.json"], "predict_with_generate": True}


def tree(evaluation: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    found = job(Path("/text"), eval=evaluation)
    found["data"] = data
    return found


@pytest.mark.parametrize(
    ("evaluation", "data", "sentence"),
    [
        (ASKED, {"text": ["/text"]}, "data.text has no prompts and no responses"),
        (ASKED, {"tokens": ["/ids.npy"]}, "data.tokens has no prompts and no responses"),
        ({"predict_with_generate": True}, EXAMPLES, "one of eval.files and eval.fraction"),
        ({"fraction": 0.1, "num_beams": 4}, EXAMPLES, "eval.num_beams = 4: nothing is generated"),
        ({"fraction": 0.1, "max_new_tokens": 9}, EXAMPLES, "eval.max_new_tokens = 9: nothing is"),
        ({"fraction": 0.1, "max_predictions": 9}, EXAMPLES, "eval.max_predictions = 9: nothing"),
        ({**ASKED, "max_sequences": 5, "max_predictions": 6}, EXAMPLES, "more than eval.max_seq"),
        ({**ASKED, "num_beams": 0}, EXAMPLES, "eval.num_beams = 0: must be at least 1"),
        ({**ASKED, "predict_with_generate": 1}, EXAMPLES, "eval.predict_with_generate = 1: must"),
    ],
)
def test_a_refusal_names_the_keys(
    evaluation: dict[str, Any], data: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadRequest) as refusal:
        job_from_dict(tree(evaluation, data), source="job")
    assert sentence in str(refusal.value)


def test_what_can_be_is_taken() -> None:
    keys = {**ASKED, "num_beams": 4, "max_predictions": 5, "max_sequences": 5}
    spec = job_from_dict(tree(keys, {**EXAMPLES, "max_target_length": 64}), source="job")
    assert spec.eval.max_new_tokens is None
    assert job_from_dict(job_to_dict(spec), source="job") == spec
    more = job_from_dict(tree({**keys, "max_new_tokens": 7}, EXAMPLES), source="job")
    assert more.eval.max_new_tokens == 7
