"""The machine is looked at for each attempt, and only where that matters."""

from __future__ import annotations

from tests.daemon.attempts.numa.test_choose_bindings import LEFT, on_cpus, on_gpus
from tests.daemon.made_attempts import an_attempt_row
from tests.sensors.numa_machines import EIGHT, dual_socket
from zerotools.sensors.numa import NumaTopology
from zerotoolsd.attempts.numa.choose_bindings import UNBOUND
from zerotoolsd.attempts.numa.placer import RankPlacer


class Machine:
    """Its topology, and with or without its cores it was asked for."""

    def __init__(self) -> None:
        self.allowed: str | None = None
        self.asked: list[bool] = []

    def topology(self, *, cores: bool = False) -> NumaTopology:
        self.asked.append(cores)
        return dual_socket(self.allowed)


def test_processors_that_were_taken_away_are_not_used_by_the_next_attempt() -> None:
    machine = Machine()
    placer = RankPlacer(lambda: EIGHT, machine.topology)
    attempt = an_attempt_row(gpu_uuids=("GPU-fake-0",), world_size=1)
    assert placer.place(on_gpus(1), attempt).ranks == (LEFT,)
    machine.allowed = "0-7,16-31"
    assert placer.place(on_gpus(1), attempt).ranks[0].cpus == "0-7"
    assert placer.place(on_gpus(1, numa="cores"), attempt).ranks[0].cpus == "0-1"
    assert machine.asked == [False, False, True]


def test_a_job_that_is_left_alone_costs_no_look() -> None:
    machine = Machine()
    placer = RankPlacer(lambda: EIGHT, machine.topology)
    attempt = an_attempt_row(gpu_uuids=("GPU-fake-0",), world_size=1)
    assert placer.place(on_gpus(1, numa="off"), attempt) == UNBOUND
    assert machine.asked == []


def test_the_size_is_that_of_the_attempt() -> None:
    placer = RankPlacer(lambda: (), Machine().topology)
    spec = on_cpus(1)
    sizes = (None, 2, 4)
    found = [placer.place(spec, an_attempt_row(world_size=size)).ranks for size in sizes]
    assert [len(ranks) for ranks in found] == [1, 2, 4]
    assert [ranks[0].cpus for ranks in found] == ["", LEFT.cpus, LEFT.cpus]
