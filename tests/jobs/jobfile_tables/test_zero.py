"""What `[zero]` is refused for: ranks that share sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.launching import job
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.elastic_world_sizes import at_size
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.job_workload import with_ranks


def spec(ranks: Any = 4, **changes: Any) -> JobSpec:
    return job_from_dict(job(Path("/t"), ranks=ranks, **changes), source="job")


def together(count: int, ranks: Any = 4, **changes: Any) -> JobSpec:
    return spec(ranks, zero={"sequence_ranks": count}, **changes)


def test_a_share_is_what_ranks_compute_together() -> None:
    assert [together(count).data_ranks for count in (1, 2, 4)] == [4, 2, 1]
    assert together(4, train={"batch_size": 1}).data_ranks == 1
    both = spec(8, zero={"sequence_ranks": 2, "tensor_ranks": 2})
    assert (both.data_ranks, both.zero.same_data_ranks) == (2, 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"zero": {"sequence_ranks": 3}}, "zero.sequence_ranks = 3: must divide the 4 ranks"),
        ({"zero": {"sequence_ranks": 0}}, "zero.sequence_ranks = 0: must be at least 1"),
        (
            {"ranks": 6, "zero": {"sequence_ranks": 2, "tensor_ranks": 2}},
            "zero.sequence_ranks = 2 and zero.tensor_ranks = 2: 4 ranks together compute each "
            "sequence, and must divide the 6 ranks",
        ),
        (
            {"zero": {"sequence_ranks": 2}, "train": {"batch_size": 3}},
            "train.batch_size = 3: must be divisible by the 2 groups of ranks",
        ),
        (
            {"zero": {"sequence_ranks": 2}, "train": {"micro_batch_size": 4}},
            "train.micro_batch_size = 4: must divide the 6 sequences of a group of 2 ranks",
        ),
        (
            {
                "ranks": None,
                "gpus": 4,
                "device": "cuda",
                "train": {"precision": "bf16"},
                "zero": {"sequence_ranks": 2},
                "model": {"config": {"model_type": "llama"}, "attention": "flash_attention_2"},
            },
            '"flash_attention_2": does not support sequences that are shared by '
            "zero.sequence_ranks = 2; leave it out",
        ),
        (
            {"engine": "deepspeed", "deepspeed": {"config": {}}, "zero": {"sequence_ranks": 2}},
            "zero.sequence_ranks",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as error:
        spec(**changes)
    assert said in str(error.value)


def test_an_elastic_job_keeps_its_groups() -> None:
    elastic = together(2, {"min": 2, "max": 8}, train={"batch_size": 12})
    assert elastic.sizes == (2, 4, 6, 8)
    passes = [at_size(elastic, size).train.micro_batch_size for size in elastic.sizes]
    assert passes == [3, 3, 2, 3]
    with pytest.raises(BadRequest, match=r"ranks\.min = 3: is not a multiple of the 2 ranks"):
        together(2, {"min": 3, "max": 8})
    with pytest.raises(BadRequest, match=r"max = 10: does not divide .* for each group of 2 ranks"):
        together(2, {"min": 2, "max": 10})


def test_nodes_with_fewer_ranks_than_a_sequence_takes() -> None:
    tree = job(Path("/t"), ranks=2, zero={"sequence_ranks": 4}, backend="slurm")
    with pytest.raises(BadRequest, match=r"zero\.sequence_ranks = 4: must divide the 2 ranks"):
        job_from_dict({**tree, "slurm": {"nodes": 1, "max_nodes": 2}}, source="job")


def test_an_estimate_for_other_ranks() -> None:
    asked = together(2, train={"batch_size": 1}, ranks=2)
    with pytest.raises(
        BadRequest, match=r"3 ranks are not a multiple of the 2 ranks that .* use 2 ranks"
    ):
        with_ranks(asked, 3)
    with pytest.raises(BadRequest, match="cannot be divided evenly among 4 ranks"):
        with_ranks(asked, 4)
    wider = replace(asked, train=replace(asked.train, batch_size=2))
    assert with_ranks(wider, 4).data_ranks == 2
