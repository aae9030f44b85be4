from __future__ import annotations

from tests.jobs.jobfile_tables.test_slurm import job
from zerotools.jobs.jobfile_tables.job_for_each_node import of_node, on_nodes


def test_each_node_runs_it_as_one_of_several_machines() -> None:
    spec = on_nodes(job({"nodes": 2}), 2, address="n1:29500", node_rank=1)
    assert (spec.backend, spec.all_ranks, spec.rendezvous.node_rank) == ("local", 4, 1)
    assert spec.rendezvous.host_and_port == ("n1", 29500)


def test_one_node_needs_no_meeting() -> None:
    spec = on_nodes(job({"nodes": 1}), 1)
    assert spec.rendezvous.address is None
    assert spec.all_ranks == 2


def test_with_fewer_nodes_a_rank_takes_its_sequences_in_more_passes() -> None:
    """8 sequences over 4 ranks are 2 in one pass; 2 ranks take their 4 as 2 twice."""
    spec = job({"nodes": 1, "max_nodes": 2})
    assert of_node(spec, 2, "n1:1", 0).train.micro_batch_size == 2
    assert of_node(spec, 1, "n1:1", 0).train.micro_batch_size == 2
    assert of_node(job({"nodes": 1}), 1, "n1:1", 0).train.micro_batch_size is None
