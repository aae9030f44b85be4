from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.job_rules import most_nodes
from zerotools.jobs.jobfile_tables.spec import JobSpec


def job(slurm: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    tree: dict[str, Any] = {
        "backend": "slurm",
        "device": "cpu",
        "ranks": 2,
        "model": {"config": {}},
        "data": {"text": ["/data/a.txt"]},
        "train": {"steps": 1, "batch_size": 8},
        "slurm": slurm,
    }
    whole = {key: value for key, value in {**tree, **changes}.items() if value is not None}
    return job_from_dict(whole, source="job")


def test_the_ranks_are_those_of_the_fewest_nodes() -> None:
    assert job({"nodes": 2}).all_ranks == 4
    assert job({"nodes": 1, "max_nodes": 4}).all_ranks == 2
    assert job().all_ranks == 2


def test_the_fewest_and_the_most_nodes_must_divide_the_batch() -> None:
    spec = job({"nodes": 1, "max_nodes": 4})
    with pytest.raises(BadRequest, match=r"batch_size = 8: .*\(slurm.nodes = 3 makes 6 ranks\)"):
        job({"nodes": 1, "max_nodes": 3})
    assert [most_nodes(spec, given) for given in (1, 2, 3, 4)] == [1, 2, 2, 4]


@pytest.mark.parametrize(
    ("slurm", "changes", "words"),
    [
        ({"partition": " "}, {}, "slurm.partition = .* must be printable text"),
        ({"time": "8x"}, {}, 'slurm.time = "8x"'),
        ({"time": "60s"}, {}, "slurm.time = .* have to save at once"),
        ({"options": ["--clusters=b"]}, {}, "zerotools gives --clusters itself"),
        ({"options": ["-Mb"]}, {}, "zerotools gives --clusters itself"),
        ({"warning": 0}, {}, "slurm.warning = 0: "),
        ({"nodes": 3, "max_nodes": 2}, {}, "is less than slurm.nodes"),
        ({"options": ["exclusive"]}, {}, "is not an option"),
        ({"options": ["--output=/x"]}, {}, "zerotools gives --output itself"),
        ({"options": ["-N4"]}, {}, "zerotools gives --nodes itself"),
        ({"options": ["--arr=1-3"]}, {}, "zerotools gives --array itself"),
        ({}, {"rendezvous": {"nodes": 2, "address": "n:1"}}, "Slurm chooses the nodes"),
        ({}, {"ranks": {"min": 1, "max": 2}}, "all nodes have the same number"),
        ({}, {"device": "cuda", "ranks": None, "gpus": [0, 1]}, "all nodes have the same number"),
        (
            {"nodes": 2},
            {"backend": "local"},
            r"\[slurm\]: has an effect only with backend = .slurm.",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    slurm: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        job(slurm, **changes)


def test_a_job_of_one_machine_says_nothing_of_slurm() -> None:
    spec = job(None, backend=None)
    assert (spec.backend, spec.all_ranks) == ("local", 2)
