"""Where the memory of a job that trains is, by what the kernel says while it does.

The rank is bound as the supervisor binds one, and everything that it allocates afterwards follows:
what each tier hands out, in whichever thread it is touched first. On a machine with one node this
shows that the policy holds; on one with two, that the pages lie there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.launching import job, start
from zerotools.sensors.numa import memory_policy, read_topology
from zerotoolsd.supervisor.set_numa_binding import RankBinding

pytestmark = [
    pytest.mark.torch,
    pytest.mark.full,
    pytest.mark.dear(20, "a rank that imports torch itself"),
]

RANK = Path(__file__).with_name("rank_bound.py")


def the_last_node() -> RankBinding:
    """A processor of the last memory node that may be used."""
    try:
        memory_policy()
    except OSError as error:
        pytest.skip(f"memory policies cannot be asked for here: {os.strerror(error.errno or 0)}")
    topology = read_topology()
    homes = [n for n in topology.homes_of(topology.allowed_cpus) if topology.memory_of((n,))]
    if not homes:
        pytest.skip("this kernel shows no memory nodes")
    cpus = homes[-1].cpus & topology.allowed_cpus
    return RankBinding(str(max(cpus)), (homes[-1].number,))


def test_offloaded_state_lies_on_the_node_that_the_rank_keeps_to(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (tmp_path / "spill").mkdir()
    keys: dict[str, Any] = {
        # With an environment of its own it is executed: what a fork was born with lies elsewhere.
        "env": {"ZEROTOOLS_NOTHING": "1"},
        "zero": {"stage": 2},
        "offload": {"optimizer": "disk", "path": str(tmp_path / "spill")},
        "checkpoint": {"every": 2},
        "train": {"precision": "bf16"},
    }
    binding, run_dir = the_last_node(), tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "binding").write_text(json.dumps(binding.to_json()))
    attempt = start(run_dir, job(text, **keys), script=RANK)
    assert attempt.finish() == [0], attempt.log()
    told = json.loads((run_dir / "told").read_text())
    assert told["failed"] == ""
    # On a machine without GPUs what is on the device is in the memory of the host, too.
    assert told["nodes"] == {tier: list(binding.nodes) for tier in ("device", "host", "disk")}
    # Those of the optimizer's step, of the save and of the data too.
    assert len(told["processors"]) > 2
    assert {tuple(cpus) for cpus in told["processors"]} == {(int(binding.cpus),)}
    # A library's allocator may ask for the node on which its thread runs: that is the same.
    assert set(told["policies"]) - {"local"} == {f"prefer:{binding.nodes[0]}"}
