"""A job file as many jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.http.api.made_views import JOB
from zerotools.core.errors import BadRequest
from zerotools.jobs.job_arrays import count_of, members_of, values_of
from zerotools.jobs.jobfile.parse import job_from_dict


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("train.learning_rate=1e-4,3e-4", "train.learning_rate", [1e-4, 3e-4]),
        ("seed=1, 2,3", "seed", [1, 2, 3]),
        ("train.optimizer=adamw,sgd", "train.optimizer", ["adamw", "sgd"]),
        ('train.optimizer="adamw"', "train.optimizer", ["adamw"]),
        ("train.betas=[0.9, 0.95],[0.9, 0.99]", "train.betas", [[0.9, 0.95], [0.9, 0.99]]),
        ("env.NAME=a=b,c", "env.NAME", ["a=b", "c"]),
        ("env.LR=1e-4,3e-4", "env.LR", ["1e-4", "3e-4"]),
        ('env.LR="1,2",3', "env.LR", ['"1', '2"', "3"]),
        ('env.LR="1,2","3"', "env.LR", ["1,2", "3"]),
        ("data.text=/a/x.txt,true", "data.text", ["/a/x.txt", True]),
    ],
)
def test_values_are_toml_or_plain_words(text: str, key: str, values: list[Any]) -> None:
    assert values_of(text) == (key, values)


@pytest.mark.parametrize("text", ["train.seed", "train.seed=", "=1", ""])
def test_what_is_no_sweep(text: str) -> None:
    with pytest.raises(BadRequest, match="must be KEY=VALUE,VALUE"):
        values_of(text)


def test_every_combination_has_a_directory_a_name_and_a_number() -> None:
    tree = {**JOB, "output_dir": "/runs/tiny"}
    sweep = {"train.steps": [4, 8], "env.LR": [1, 2]}
    found = members_of(tree, sweep, 2)
    assert [each.label for each in found[::2]] == [
        "train.steps=4, env.LR=1",
        "train.steps=4, env.LR=2",
        "train.steps=8, env.LR=1",
        "train.steps=8, env.LR=2",
    ]
    specs = [job_from_dict(each.tree, source="job") for each in found]
    assert [spec.output_dir for spec in specs] == [f"/runs/tiny/{n}" for n in range(8)]
    assert [spec.name for spec in specs] == [f"tiny-{n}" for n in range(8)]
    assert (specs[6].train.steps, specs[6].env["LR"]) == (8, "2")
    assert specs[6].env == {"TOKEN": "hunter2", "LR": "2", "ZEROTOOLS_ARRAY_INDEX": "6"}
    assert "LR" not in tree["env"], "the tree is left as it was"


@pytest.mark.parametrize(
    ("sweep", "count", "sentence"),
    [
        ({"train.stepz": [1]}, None, "sweep: train.stepz: unknown key; did you mean train.steps?"),
        ({"train.seed": [1]}, None, "sweep: train.seed: unknown key; did you mean seed?"),
        ({"train.lr": [1]}, None, "unknown key; did you mean train.learning_rate?"),
        ({"x\n": [1]}, None, "unknown key"),
        (
            {"output_dir": ["/a"]},
            None,
            "output_dir: each job of an array gets a separate one already",
        ),
        ({"train.steps": []}, None, "sweep: train.steps has no values"),
        ({"train.steps": [1, 1]}, None, "sweep: train.steps has a value twice"),
        ({"seed": list(range(1001))}, None, "these are 1001 jobs, but an array has 1 to 1000"),
        ({"seed": list(range(100)), "train.steps": [1, 2]}, 10, "these are 2000 jobs"),
        ({}, 10**9, "these are 1000000000 jobs"),
        ({}, 0, "these are 0 jobs"),
    ],
)
def test_nothing_is_made_of_what_is_too_much_or_unknown(
    sweep: dict[str, list[Any]], count: int | None, sentence: str
) -> None:
    with pytest.raises(BadRequest) as info:
        members_of(JOB, sweep, count)
    assert sentence in str(info.value)


def test_huge_products_are_counted_and_not_made() -> None:
    with pytest.raises(BadRequest, match=f"these are {10**30} jobs"):
        count_of({f"k{n}": list(range(1000)) for n in range(10)}, None)


def test_a_value_of_the_wrong_type_is_refused_as_in_a_job_file() -> None:
    (member,) = members_of(JOB, {"train.steps": ["many"]}, None)
    with pytest.raises(BadRequest, match=r"train.steps = \"many\": must be a whole number"):
        job_from_dict(member.tree, source="job")
    (member,) = members_of(JOB, {"model.config": [3], "device": ["cpu"]}, None)
    with pytest.raises(BadRequest, match=r"model.config"):
        job_from_dict(member.tree, source="job")
