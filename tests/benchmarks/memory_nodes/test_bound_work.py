"""The process that is measured, on this machine's first node."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks.measuring import Measurement, measure
from benchmarks.memory_nodes.__main__ import NOTHING, bindings_of, command, main, table
from tests.sensors.numa_machines import a_topology, dual_socket
from zerotools.sensors.numa import memory_policy
from zerotoolsd.supervisor.set_numa_binding import RankBinding


def test_on_one_node_there_is_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    for topology in (a_topology("0-7"), dual_socket("0-7")):
        assert main([], topology) == 0
        assert capsys.readouterr().out == f"{NOTHING}\n"


def test_near_far_and_unbound_of_each_node_with_the_same_threads() -> None:
    assert list(bindings_of(dual_socket())) == [
        ("node 0, unbound", RankBinding(), 16),
        ("node 0, near", RankBinding("0-15,32-47", (0,)), 16),
        ("node 0, far, memory of node 1", RankBinding("0-15,32-47", (1,)), 16),
        ("node 1, unbound", RankBinding(), 16),
        ("node 1, far, memory of node 0", RankBinding("16-31,48-63", (0,)), 16),
        ("node 1, near", RankBinding("16-31,48-63", (1,)), 16),
    ]


def test_rates_are_of_the_bytes_that_are_moved() -> None:
    said = {"failed": "", "seconds": {"copy": [2.0, 1.0, 4.0]}, "nodes": {"copy": [1]}}
    measured = Measurement(1.0, 1.0, 0, output=json.dumps(said))
    *_, line = table({"node 0, far": [measured]}, 1024)
    assert line == "| node 0, far | copy | 1.0 (0.5 to 2.0) | 1 |"


@pytest.mark.full  # it trains a step in a process of its own
@pytest.mark.torch
def test_the_work_says_how_long_it_took_and_where_its_memory_was() -> None:
    try:
        memory_policy()
    except OSError as error:
        pytest.skip(f"memory policies cannot be asked for here: {error.strerror}")
    binding = RankBinding(str(max(os.sched_getaffinity(0))), (0,))
    found = json.loads(measure(command(binding, 1, 16, 2)).output)
    assert found["failed"] == ""
    assert found["nodes"]["copy"] == found["nodes"]["step"] == [0]
    assert {len(found["seconds"][what]) for what in ("copy", "step")} == {2}
