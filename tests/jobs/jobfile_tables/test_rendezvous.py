from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of, shard_size_of
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec

TWO = {"address": "10.0.0.1:29500", "nodes": 2}


def job(rendezvous: dict[str, Any], **changes: Any) -> JobSpec:
    tree: dict[str, Any] = {
        "device": "cpu",
        "ranks": 2,
        "output_dir": "/shared/out",
        "model": {"config": {}},
        "data": {"text": ["/data/a.txt"]},
        "train": {"steps": 1, "batch_size": 8},
        "rendezvous": rendezvous,
    }
    whole = {key: value for key, value in {**tree, **changes}.items() if value is not None}
    return job_from_dict(whole, source="job")


def test_the_ranks_of_all_nodes_divide_the_batch_and_share_the_model() -> None:
    spec = job({**TWO, "node_rank": 1})
    assert (spec.world_size, spec.all_ranks) == (2, 4)
    assert spec.rendezvous.host_and_port == ("10.0.0.1", 29500)
    assert spec.rendezvous.timeout_seconds == 1800
    with pytest.raises(BadRequest, match="must be divisible by the 4 ranks"):
        job(TWO, train={"steps": 1, "batch_size": 6})


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 2),  # weights are gathered within a node
        ({"zero": {"stage": 1}}, None),
        ({"zero": {"stage": 3, "shard_size": 4}}, 4),
        ({"ranks": 1}, None),  # a node of one rank has nobody to share with
        ({"rendezvous": {}}, None),
    ],
)
def test_each_node_has_a_copy_of_the_weights_by_default(
    changes: dict[str, Any], size: int | None
) -> None:
    spec = job(**{"rendezvous": TWO, **changes})
    assert shard_size_of(spec) == size
    assert memory_layout_of(spec).world_size == spec.all_ranks


@pytest.mark.parametrize("address", ["node0.local:29500", "[fe80::1]:1", "10.0.0.1:65535"])
def test_addresses(address: str) -> None:
    place = job({"address": address, "nodes": 2}).rendezvous.host_and_port
    assert place is not None
    assert place[0] == address.rpartition(":")[0].strip("[]")


@pytest.mark.parametrize(
    ("rendezvous", "changes", "why"),
    [
        ({"nodes": 2}, {}, "need a common address"),
        ({"nodes": 2, "address": "10.0.0.1"}, {}, "is not HOST:PORT"),
        ({"nodes": 2, "address": "http://a:1"}, {}, "is not HOST:PORT"),
        ({"nodes": 2, "address": "a:65536"}, {}, "is not HOST:PORT"),
        ({"nodes": 2, "address": "a:0"}, {}, "is not HOST:PORT"),
        ({"address": "a:1"}, {}, "rendezvous.nodes, the number of machines"),
        ({**TWO, "node_rank": 2}, {}, "it must be from 0 to 1"),
        ({**TWO, "timeout": "soon"}, {}, "rendezvous.timeout"),
        (TWO, {"output_dir": None}, "set output_dir to a directory that all of them have"),
        (TWO, {"ranks": {"min": 1, "max": 2}}, "elastic"),
        (
            TWO,
            {
                "engine": "script",
                "script": {"command": ["a.py"], "launcher": "deepspeed", "directory": "/"},
                **dict.fromkeys(("model", "data", "train")),
            },
            "by ssh, which no daemon does",
        ),
    ],
)
def test_what_is_refused(rendezvous: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        job(rendezvous, **changes)
