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
        ({"predict_with_generate": True}, EXAMPLES, "needs eval.files or eval.fraction"),
        (
            {"fraction": 0.1, "num_beams": 4},
            EXAMPLES,
            "eval.num_beams = 4: the evaluation generates no text",
        ),
        (
            {"fraction": 0.1, "max_new_tokens": 9},
            EXAMPLES,
            "eval.max_new_tokens = 9: the evaluation",
        ),
        (
            {"fraction": 0.1, "max_predictions": 9},
            EXAMPLES,
            "eval.max_predictions = 9: the evaluation",
        ),
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


@pytest.mark.parametrize(
    ("evaluation", "changes", "sentence"),
    [
        ({"tasks": ["arc_easy,hellaswag"]}, {}, "is not a name; write one task in each string"),
        ({"tasks": ["a", "b", "a"]}, {}, 'eval.tasks = ["a", "b", "a"]: names a task twice'),
        ({"tasks": ["a"], "limit": 1.5}, {}, "eval.limit = 1.5: must be a whole number of"),
        ({"tasks": ["a"], "limit": 0}, {}, "eval.limit = 0.0: must be a whole number of"),
        ({"tasks": ["a"], "few_shot": -1}, {}, "eval.few_shot = -1: must be at least 0"),
        ({"tasks": ["a"], "every": 5}, {}, "needs eval.files or eval.fraction"),
        (
            {"fraction": 0.1, "few_shot": 2},
            {},
            "eval.few_shot = 2: has an effect only with eval.tasks; set eval.tasks",
        ),
        (
            {"task_dir": "/tasks"},
            {},
            'eval.task_dir = "/tasks": has an effect only with eval.tasks',
        ),
        ({"tasks": ["a"]}, {"data": {"text": ["/t"]}}, "needs a model with a Hugging Face token"),
        (
            {"tasks": ["a"]},
            {"backend": "slurm", "output_dir": "/out"},
            "because a daemon queues the evaluation",
        ),
    ],
)
def test_tasks_that_cannot_be_asked_are_refused(
    evaluation: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadRequest) as refusal:
        job_from_dict({**tree(evaluation, EXAMPLES), **changes}, source="job")
    assert sentence in str(refusal.value)


def test_tasks_need_no_data_and_take_the_tokenizer_of_the_model() -> None:
    spec = job_from_dict(tree({"tasks": ["a"], "batch_size": 4, "limit": 20}, EXAMPLES), source="j")
    assert (spec.eval.has_data, spec.eval.limit) == (False, 20.0)
    own = {**tree({"tasks": ["a"]}, {"tokens": ["/ids.npy"]}), "model": {"path": "/model"}}
    assert job_from_dict(own, source="job").eval.tasks == ("a",)
    assert job_from_dict(tree({"fraction": 0.5}, EXAMPLES), source="job").eval.has_data


def test_what_can_be_is_taken() -> None:
    keys = {**ASKED, "num_beams": 4, "max_predictions": 5, "max_sequences": 5}
    spec = job_from_dict(tree(keys, {**EXAMPLES, "max_target_length": 64}), source="job")
    assert spec.eval.max_new_tokens is None
    assert job_from_dict(job_to_dict(spec), source="job") == spec
    more = job_from_dict(tree({**keys, "max_new_tokens": 7}, EXAMPLES), source="job")
    assert more.eval.max_new_tokens == 7
