"""Elastic jobs: their sizes, what each makes of the job, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadRequest
from zerotools.jobs.job_arrays import check_key, remove_key, set_key
from zerotools.jobs.jobfile.parse import given_of, job_from_dict, job_to_dict, parse_job
from zerotools.jobs.jobfile.stored_job import read_stored
from zerotools.jobs.jobfile_tables.elastic_world_sizes import at_size, largest_spec
from zerotools.jobs.jobfile_tables.spec import JobSpec


def tree(ranks: Any, batch: int = 24, device: str = "cpu", **tables: Any) -> dict[str, Any]:
    train = {"steps": 2, "batch_size": batch, **tables.pop("train", {})}
    count = {"ranks": ranks} if device == "cpu" else {"gpus": ranks}
    where = {"model": {"path": "/m"}, "data": {"text": ["/t"]}, "train": train}
    return {"device": device, **count, **where, **tables}


def spec(ranks: Any, **values: Any) -> JobSpec:
    return job_from_dict(tree(ranks, **values), source="job")


def refusal(ranks: Any, **values: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        spec(ranks, **values)
    return str(caught.value).removeprefix("job: ")


def test_only_sizes_that_divide_the_batch_are_taken() -> None:
    assert spec({"min": 2, "max": 8}).sizes == (2, 3, 4, 6, 8)
    assert spec({"min": 2, "max": 8}, device="cuda").sizes == (2, 3, 4, 6, 8)
    assert spec({"min": 1, "max": 3}, train={"micro_batch_size": 8}).sizes == (1, 3)
    assert spec({"min": 2, "max": 4}, zero={"shard_size": 2}).sizes == (2, 4)
    assert spec({"min": 3, "max": 3}).sizes == (3,)
    assert (spec(4).sizes, spec(4).size_range) == ((4,), None)
    assert spec({"min": 2, "max": 8}).world_size == 2


def test_a_job_of_one_size_is_what_it_is() -> None:
    rigid = spec(4)
    assert at_size(rigid, 2) is rigid
    assert largest_spec(rigid) is rigid


def test_a_pass_has_no_more_sequences_than_at_the_largest_size() -> None:
    job = spec({"min": 2, "max": 8})
    passes = {size: at_size(job, size).train.micro_batch_size for size in job.sizes}
    assert passes == {2: 3, 3: 2, 4: 3, 6: 2, 8: 3}
    assert at_size(job, 4).ranks == 4
    assert at_size(job, 4).eval.batch_size == 1  # as without a micro batch
    own = spec({"min": 1, "max": 3}, train={"micro_batch_size": 8}, eval={"files": ["/e"]})
    assert at_size(own, 3).train.micro_batch_size == 8
    assert at_size(own, 3).eval.batch_size is None
    assert largest_spec(spec({"min": 1, "max": 4}, device="cuda")).gpus == 4


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_every_size_takes_the_whole_batch(first: int, second: int, times: int) -> None:
    least, most = sorted((first, second))
    batch = times * math.lcm(least, most)
    job = spec({"min": least, "max": most}, batch=batch)
    assert (job.sizes[0], job.sizes[-1]) == (least, most)
    for size in job.sizes:
        sized = at_size(job, size)
        micro = sized.train.micro_batch_size
        assert micro is not None
        assert sized.world_size == size
        assert batch % size == 0
        assert batch // size % micro == 0
        assert micro <= batch // most
    assert largest_spec(job).train.micro_batch_size == batch // most


def test_what_is_wrong_is_said_with_the_sizes_that_do() -> None:
    assert refusal({"min": 8, "max": 2}).startswith("ranks.min = 8: must be at most ranks.max")
    assert refusal({"min": 0, "max": 2}) == "ranks.min = 0: must be at least 1"
    assert refusal({"min": 1, "max": 10**12}).endswith("must be at most 1024")
    uneven = refusal({"min": 2, "max": 7}, device="cuda")
    assert uneven.startswith("gpus.max = 7: does not divide train.batch_size = 24")
    assert uneven.endswith("from 2 to 7, the possible numbers are 2, 3, 4, 6")
    assert "is possible; change ranks" in refusal({"min": 5, "max": 5})
    passes = refusal({"min": 1, "max": 4}, train={"micro_batch_size": 8})
    assert "gives each rank 6 of the 24 sequences" in passes
    assert "zero.shard_size = 2" in refusal({"min": 1, "max": 4}, zero={"shard_size": 2})
    assert refusal({"min": 2}) == "ranks.max: is missing"
    assert refusal({"min": "a", "max": 2}) == 'ranks.min = "a": must be a whole number'
    assert "ranks.least: unknown key" in refusal({"least": 2, "min": 1, "max": 2})
    assert "ranks.max: must be" not in refusal([1, 2])
    assert "set ranks instead" in refusal(2, gpus={"min": 1, "max": 2})


def test_engines_that_cannot_change_their_size_say_why() -> None:
    deepspeed = refusal({"min": 2, "max": 4}, engine="deepspeed", deepspeed={"config": {}})
    assert "zerotools reshard converts" in deepspeed
    assert 'use engine = "torch", which allows elastic jobs, or set one number' in deepspeed
    script = {"engine": "script", "device": "cpu", "script": {"command": ["a"]}}
    with pytest.raises(BadRequest, match="cannot divide the batch of your program"):
        job_from_dict({**script, "ranks": {"min": 1, "max": 2}}, source="job")


def test_it_is_stored_and_read_as_it_was() -> None:
    job = spec({"min": 2, "max": 8}, device="cuda")
    stored, given_keys = job_to_dict(job), given_of(job)
    assert stored["gpus"] == given_keys["gpus"] == {"min": 2, "max": 8}
    assert read_stored(stored, given_keys).spec == job
    assert job_from_dict(given_keys, source="job") == job
    assert read_stored({**stored, "gpus": {"min": 2}}, given_keys).problems == (
        "gpus = a table: max: is missing",
    )


def test_a_job_file_names_the_line(tmp_path: Path) -> None:
    text = 'device = "cpu"\n[model]\npath = "/m"\n[data]\ntext = ["/t"]\n'
    text += "[train]\nsteps = 1\nbatch_size = 8\n[ranks]\nmin = 1\nmax = 3\n"
    with pytest.raises(BadRequest, match=r"job\.toml:11: ranks\.max = 3: does not divide"):
        parse_job(text, source="job.toml", base_dir=tmp_path)


def test_its_ends_can_be_set_one_by_one() -> None:
    job: dict[str, Any] = {"gpus": 4}
    for key in ("gpus.min", "gpus.max", "ranks.min"):
        check_key(key, "edit", frozenset())
    set_key(job, "gpus.min", 2)
    assert job == {"gpus": {"min": 2}}  # the job is refused as long as gpus.max is missing
    set_key(job, "gpus.max", 8)
    remove_key(job, "gpus.min")
    assert job == {"gpus": {"max": 8}}
    set_key(job, "gpus", 4)
    assert job == {"gpus": 4}
