"""What ranks agree on, with a group and a store that are simulated."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import zerotools.integrations
from zerotools import worker
from zerotools.integrations import agree_between_ranks
from zerotools.integrations.agree_between_ranks import TrainingRanks

FOLDER = Path(zerotools.integrations.__file__).parent


class Store:
    """A store of torch.distributed in which all other ranks have counted themselves already."""

    def __init__(self, others: int) -> None:
        self.others = others
        self.counts: dict[str, int] = {}
        self.values: dict[str, str] = {}

    def add(self, key: str, amount: int) -> int:
        self.counts[key] = self.counts.get(key, self.others) + amount
        return self.counts[key]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        assert expected == ""
        return self.values.setdefault(key, desired).encode()


class World:
    """Two ranks: `torch`, and a clock. `heard` is what the other rank has heard at each question,
    `asked` are the steps of the questions."""

    def __init__(self, others: int = 1) -> None:
        self.now = 0.0
        self.heard = False
        self.count = 0
        self.store = Store(others)
        distributed = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_world_size=lambda: 2,
            distributed_c10d=SimpleNamespace(_get_default_store=lambda: self.store),
            all_reduce=self.all_reduce,
            ReduceOp=SimpleNamespace(MAX="max"),
        )
        self.torch = SimpleNamespace(distributed=distributed, tensor=self.tensor)

    def tensor(self, values: list[float], device: Any) -> Any:
        return SimpleNamespace(values=values, tolist=lambda: list(values))

    def all_reduce(self, tensor: Any, operation: str) -> None:
        assert operation == "max"
        self.count += 1
        tensor.values[0] = max(tensor.values[0], float(self.heard))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setitem(sys.modules, "torch", made.torch)
    monkeypatch.setattr(agree_between_ranks.time, "monotonic", lambda: made.now)
    assert not worker.in_job()
    return made


def asked_at(world: World, group: TrainingRanks, seconds: Callable[[int], float]) -> list[int]:
    """The steps of 1 to 60 after which the ranks agree, where a step takes `seconds`."""
    found = []
    for step in range(1, 61):
        world.now += seconds(step)
        before = world.count
        assert not group.should_stop(step)
        found += [step] * (world.count - before)
    return found


def test_quick_steps_are_asked_about_once_a_second(world: World) -> None:
    group = TrainingRanks(2)
    group.begin(0)
    steps = asked_at(world, group, lambda step: 5.0 if step == 1 else 0.0625)
    assert steps == [1, 2, 18, 34, 50]


def test_slow_steps_are_asked_about_each_time(world: World) -> None:
    group = TrainingRanks(2)
    group.begin(0)
    assert asked_at(world, group, lambda _: 3.0) == list(range(1, 61))


def test_a_stop_that_another_rank_has_heard_is_agreed_on_after_a_resume_too(world: World) -> None:
    group = TrainingRanks(2)
    group.begin(100)
    assert not group.should_stop(101)
    world.heard = True
    world.now += 1.0
    stops = [step for step in range(102, 230) if group.should_stop(step)]
    assert stops[0] in range(102, 101 + 1 + agree_between_ranks.MOST_STEPS_BETWEEN)


def test_a_rank_without_a_callback_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.store.others = 0
    monkeypatch.setattr(agree_between_ranks, "JOIN_SECONDS", 0.0)
    group = TrainingRanks(2)
    assert not group.is_complete
    assert not group.should_stop(1)
    assert world.count == 0
    assert "fewer than 2 ranks have a ZerotoolsCallback" in capsys.readouterr().err


def test_a_save_is_over_when_every_rank_has_saved(world: World) -> None:
    group = TrainingRanks(2)
    world.store.others = 0
    key = group.count_saved(7)
    assert not group.have_saved(key)
    world.store.add(key, 1)
    assert group.have_saved(key)
    assert not group.have_saved(group.count_saved(7)), "a second save of the same step"


@pytest.mark.parametrize("size", [1, 4])
def test_ranks_without_a_common_group(world: World, size: int) -> None:
    """A single rank needs none. Four whose group has two ranks agree on nothing."""
    group = TrainingRanks(size)
    assert group.is_complete == (size == 1)
    assert group.have_saved(group.count_saved(1)) == (size == 1)
    assert world.count == 0


def test_they_are_written_for_interpreters_that_zerotools_itself_is_not_for() -> None:
    paths = sorted(FOLDER.glob("*.py"))
    assert len(paths) > 3
    for path in paths:
        ast.parse(path.read_text("utf-8"), feature_version=(3, 9))
