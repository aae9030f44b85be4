from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerotools.sensors.network import Counters, NetworkUse, read_counters


def use(links: Path, readings: Sequence[Counters]) -> NetworkUse:
    """With a reading each two seconds."""
    counters, times = iter(readings), iter(range(100, 200, 2))
    return NetworkUse(links, lambda: next(counters), lambda: float(next(times)))


def test_only_hardware_counts_where_there_is_some(tmp_path: Path) -> None:
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    (tmp_path / "docker0").mkdir()
    first = {"lo": (0, 0), "eth0": (1000, 50), "docker0": (1000, 50)}
    then = {"lo": (900, 900), "eth0": (3000, 150), "docker0": (3000, 150)}
    found = use(tmp_path, [first, then])
    assert found.read() == (None, None)
    assert found.read() == (1000.0, 50.0)


def test_a_container_has_no_hardware(tmp_path: Path) -> None:
    found = use(tmp_path, [{"lo": (0, 0), "veth": (0, 0)}, {"lo": (8, 8), "veth": (2, 4)}])
    found.read()
    assert found.read() == (1.0, 2.0)


def test_links_come_and_go_and_counters_start_again(tmp_path: Path) -> None:
    readings = [{"a": (500, 500)}, {"a": (100, 700), "b": (10**9, 10**9)}, {}]
    found = use(tmp_path, readings)
    found.read()
    assert found.read() == (0.0, 100.0)
    assert found.read() == (0.0, 0.0)


def test_the_kernel_counts() -> None:
    assert all(len(each) == 2 for each in read_counters().values())
