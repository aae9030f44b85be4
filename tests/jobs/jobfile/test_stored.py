"""Jobs that another version accepted: what this one reads of them, and what it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.api.fakes import JOB
from zerotools.jobs.jobfile.parse import given_of, job_from_dict, job_to_dict
from zerotools.jobs.jobfile.stored import read_stored


def resolved(**changes: Any) -> dict[str, Any]:
    return {**job_to_dict(job_from_dict(JOB, source="job")), **changes}


def test_the_rules_of_today_are_not_run_over_what_was_accepted_once() -> None:
    tree = resolved(max_restarts=-1, ranks=7)
    tree["train"] |= {"optimizer": "sgd", "betas": [0.8, 0.9]}
    spec, problems = read_stored(tree, JOB)
    assert problems == ()
    assert spec is not None
    assert (spec.train.betas, spec.max_restarts, spec.world_size) == ((0.8, 0.9), -1, 7)
    assert job_to_dict(spec) == tree


def test_an_unknown_key_counts_only_where_it_was_set() -> None:
    tree = resolved(later=7)
    tree["train"]["warmth"] = 1.0
    assert read_stored(tree, JOB).problems == ()
    given = {**JOB, "later": 7, "train": {**JOB["train"], "warmth": 1.0}}
    told = ("later is a key that this version does not know",)
    assert read_stored(tree, given).problems == (*told, "train.warmth" + told[0][5:])
    assert len(read_stored(tree).problems) == 2


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"device": "tpu"}, 'device = "tpu": must be one of'),
        ({"ranks": "two"}, 'ranks = "two": must be a whole number'),
        ({"train": 7}, "train: must be a table, not 7"),
        ({"seed": float("nan")}, "seed = nan: must be a whole number"),
        ({"output_dir": "/a\0b"}, "must not contain a NUL"),
        ({"output_dir": "/\ud800"}, "must be valid Unicode"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_rest_is_read(
    changes: dict[str, Any], problem: str
) -> None:
    spec, problems = read_stored(resolved(**changes), JOB)
    assert spec is not None
    assert spec.name == "tiny"
    assert any(problem in each for each in problems), problems


@pytest.mark.parametrize("tree", [None, 7, [], {}, {"gone": 1}, {"engine": "script"}])
def test_what_is_not_a_job_is_not_read_as_one(tree: object) -> None:
    assert read_stored(tree).problems


def test_a_key_that_was_set_must_be_there() -> None:
    tree = resolved()
    del tree["train"]["steps"]
    assert read_stored(tree, JOB).problems == ("train.steps is missing",)


def test_what_was_set_and_what_it_came_to_are_kept_through_a_resume() -> None:
    spec, _ = read_stored(resolved(), JOB)
    assert spec is not None
    assert given_of(spec) == JOB
    assert job_from_dict(given_of(spec), source="job") == spec


def test_a_file_name_that_is_not_utf8_is_read_again_and_not_taken_from_a_request() -> None:
    spec, problems = read_stored(resolved(resume_from="/ck-\udce9"), JOB)
    assert spec is not None
    assert (spec.resume_from, problems) == ("/ck-\udce9", ())
    with pytest.raises(Exception, match=r"resume_from = .*: must be valid Unicode text"):
        job_from_dict({**JOB, "resume_from": "/ck-\udce9"}, source="job")
