"""A guess in the words of another program is answered with our key or value."""

from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.binding import bind
from zerotools.jobs.binding.bind import dotted_keys
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec

JOB = {
    "device": "cpu",
    "model": {"config": {"model_type": "llama"}},
    "data": {"text": ["/a.txt"]},
    "train": {"steps": 1, "batch_size": 1},
}


def refusal(**changes: object) -> str:
    with pytest.raises(BadRequest) as caught:
        job_from_dict(JOB | changes, source="job")
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("lr", "train.learning_rate"),
        ("LR", "train.learning_rate"),
        ("max_steps", "train.steps"),
        ("output", "output_dir"),
        ("num_gpus", "gpus"),
        ("learning_rate", "train.learning_rate"),
        ("learning_rat", "train.learning_rate"),
        ("packing", "data.packing"),
        ("sead", "seed"),
    ],
)
def test_a_key_of_another_name_or_table(key: str, ours: str) -> None:
    assert refusal(**{key: 1}) == f"job: {key}: unknown key; did you mean {ours}?"


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({"device": "gpu"}, "cuda"),
        ({"train": {**JOB["train"], "precision": "float16"}}, "fp16"),
        ({"train": {**JOB["train"], "precision": "bfloat16"}}, "bf16"),
        ({"train": {**JOB["train"], "schedule": "Cosine"}}, "cosine"),
    ],
)
def test_a_value_of_another_name(changes: dict[str, object], ours: str) -> None:
    assert refusal(**changes).endswith(f'did you mean "{ours}"?')


def test_every_synonym_is_of_a_key_that_there_is_and_hides_none() -> None:
    keys = set(dict(dotted_keys(JobSpec)))
    for meant in bind.KEYS.values():
        words = meant.partition(" (")[0].replace(" or ", ", ").split(", ")
        assert set(words) <= keys, meant
    assert not keys & set(bind.KEYS)
