"""Trouble that finds nothing to hit."""

from __future__ import annotations

from pathlib import Path

from zerotools.jobs.chaos.chaos_options import ChaosOptions
from zerotools.jobs.chaos.inject_faults import Fault, FaultMaker, KindBag
from zerotools.jobs.chaos.private_daemon import PrivateDaemon
from zerotools.jobs.chaos.toy_queue import ToyQueue


def test_where_nothing_runs_nothing_is_counted(tmp_path: Path) -> None:
    daemon = PrivateDaemon(tmp_path, 1)
    queue = ToyQueue(tmp_path, daemon.client, ChaosOptions(seed=1, directory=tmp_path))
    faults = FaultMaker(daemon, queue, seed=1, every=0.001)
    assert [faults.make() for _ in range(50)] == [None] * 50
    faults.stop()
    assert faults.made == []


def test_a_fault_is_one_line() -> None:
    assert str(Fault(3.25, "SIGSTOP of a rank", "job 1")) == "   3.2 s  SIGSTOP of a rank: job 1"


def test_a_seed_gives_the_same_kinds_and_each_comes_once_before_any_comes_again() -> None:
    one, same, other = (KindBag("abcdefgh", seed, 2.0) for seed in (1, 1, 2))
    assert 0.0 <= one.first_wait() == same.first_wait() <= 2.0
    drawn = [one.draw() for _ in range(24)]
    assert drawn == [same.draw() for _ in range(24)]
    assert drawn != [other.draw() for _ in range(24)]
    for begin in (0, 8, 16):
        assert {kind for kind, _ in drawn[begin : begin + 8]} == set("abcdefgh")
