"""Jobs that another version accepted: what this one reads of them, and what it cannot."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import MISSING
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.http.api.made_views import JOB
from tests.golden_files import GOLDEN
from tests.jobs.binding.test_declaration import Inner, Table
from zerotools.jobs.binding.bind import build_dataclass, dotted_keys
from zerotools.jobs.binding.declaration import stored_default_of
from zerotools.jobs.jobfile.parse import given_of, job_from_dict, job_to_dict, keys_set, tree_of
from zerotools.jobs.jobfile.stored_job import read_stored, read_table
from zerotools.jobs.jobfile_tables.spec import JobSpec

DEFAULTS = sorted(GOLDEN.glob("zerotools-*/defaults.json"))
"""The default of every key, as a version was published with it."""
QUEUES = sorted(GOLDEN.glob("zerotools-*/queue.db"))


def resolved(**changes: Any) -> dict[str, Any]:
    return {**job_to_dict(job_from_dict(JOB, source="job")), **changes}


def test_the_rules_of_today_are_not_run_over_what_was_accepted_once() -> None:
    tree = resolved(max_restarts=-1, name="12", ranks=7)
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


@pytest.mark.parametrize("bound", [None, 128, 9])
@pytest.mark.parametrize("chosen", [None, 7])
@pytest.mark.parametrize("way", [None, "new", "old"])
def test_a_value_is_stored_as_it_was_resolved_and_read_so(
    bound: Any, chosen: Any, way: Any
) -> None:
    table = Table(needed=1, bound=bound, chosen=chosen, inner=Inner(way=way))
    tree = json.loads(json.dumps(tree_of(table)))
    assert read_table(Table, tree, None, "", []) == table
    assert build_dataclass(Table, tree, "", []) == table


def test_a_new_submit_has_the_new_defaults_and_a_stored_job_those_it_began_with() -> None:
    new, old = {"needed": 1}, {"needed": 1, "unset": 2}
    assert build_dataclass(Table, new, "", []) == Table(needed=1)
    problems: list[str] = []
    read = read_table(Table, old, {"needed": 1}, "", problems)
    assert read == Table(needed=1, unset=2, bound=None, chosen=7, inner=Inner(way="old"))
    partly = read_table(Table, {**old, "inner": {"plain": 5}}, {"needed": 1}, "", problems)
    assert partly.inner == Inner(way="old", plain=5)
    assert problems == []
    # What a resume stores of it is what it was read as.
    assert read_table(Table, tree_of(read), None, "", problems) == read


def test_a_job_that_lacks_a_key_has_the_default_that_the_key_was_published_with() -> None:
    spec, problems = read_stored({"model": {}, "data": {}, "train": {"batch_size": 4}}, {})
    assert spec is not None
    assert problems == ()
    then = published_defaults()
    read = {
        name: plain(reduce(getattr, name.split("."), spec))
        for name, _ in dotted_keys(JobSpec)
        if name in then
    }
    assert read == {name: value for name, value in then.items() if name in read}


def test_a_key_newer_than_the_last_published_version_says_what_older_jobs_are_read_with() -> None:
    then = published_defaults()
    silent = [
        name
        for name, (item, _) in dotted_keys(JobSpec)
        if name not in then and item.default is not MISSING and stored_default_of(item) is ...
    ]
    assert not silent, f"give these keys a stored_default: {silent}"


def published_defaults() -> dict[str, Any]:
    """Of each key, its default in the first version that had it."""
    return {
        name: value
        for path in reversed(DEFAULTS)
        for name, value in json.loads(path.read_text()).items()
    }


@pytest.mark.parametrize("queue", QUEUES, ids=lambda path: path.parent.name)
def test_jobs_of_an_older_queue_keep_every_value_that_was_stored(queue: Path) -> None:
    uri = f"file:{queue}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as db:
        jobs = [json.loads(row[0]) for row in db.execute("SELECT spec FROM job")]
    assert len(jobs) == 8
    for tree in jobs:
        spec, problems = read_stored(tree, {})
        assert spec is not None
        assert problems == ()
        stored = set(keys_set(tree))
        again = job_to_dict(spec)
        assert stored <= set(keys_set(again))
        assert {name: value_at(again, name) for name in stored} == {
            name: value_at(tree, name) for name in stored
        }


def value_at(tree: Any, dotted: str) -> Any:
    """`tree["train"]["steps"]` of `train.steps`."""
    return reduce(lambda table, name: table[name], dotted.split("."), tree)


def plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value))


def before_the_order_key(given: dict[str, Any]) -> JobSpec:
    tree = job_to_dict(job_from_dict(given, source="job"))
    assert tree.pop("resume_order", None) is None
    spec, problems = read_stored(tree, given)
    assert problems == ()
    assert spec is not None
    return spec


def test_a_job_of_before_its_order_key_takes_numbers_in_the_order_of_the_model() -> None:
    assert before_the_order_key({**JOB, "resume_from": "/runs/a"}).resume_order == "model"


SCRIPT_JOB = {
    "name": "script",
    "engine": "script",
    "script": {"command": ["true"], "directory": "/", "checkpoint_dir": "/runs/b"},
}


@pytest.mark.parametrize("given", [JOB, SCRIPT_JOB, {**SCRIPT_JOB, "resume_from": "/runs/a"}])
def test_an_older_job_without_numbers_to_order_can_be_submitted_again(
    given: dict[str, Any],
) -> None:
    spec = before_the_order_key(given)
    assert spec.resume_order is None
    assert job_to_dict(job_from_dict(given_of(spec), source="again")) == job_to_dict(spec)
