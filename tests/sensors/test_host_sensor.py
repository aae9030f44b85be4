from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerotools.sensors.host_sensor import (
    FIRST_READING,
    NO_PRESSURE,
    Counters,
    HostSensor,
    NetworkUse,
    parse_stall,
    read_counters,
)
from zerotools.sensors.snapshot import Stall

FULL = """\
some avg10=1.50 avg60=0.25 avg300=0.00 total=123
full avg10=0.50 avg60=0.10 avg300=0.00 total=45
"""
OF_TWO_READINGS = (
    "cpu_percent",
    "network_received_bytes_per_second",
    "network_sent_bytes_per_second",
)


def test_pressure_is_parsed() -> None:
    assert parse_stall(FULL) == Stall(1.5, 0.25, 0.5, 0.1)
    assert parse_stall(FULL.splitlines()[0]) == Stall(1.5, 0.25)
    assert parse_stall("") is None


def test_a_kernel_without_pressure_is_said(tmp_path: Path) -> None:
    host = HostSensor(proc=tmp_path).read()
    assert host.pressure is None
    assert host.missing["pressure"] == NO_PRESSURE


def test_host_adds_up(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text(FULL, encoding="ascii")
    sensor = HostSensor(proc=tmp_path)
    host = sensor.read()
    assert host.memory_used_bytes + host.memory_available_bytes == host.memory_total_bytes
    assert host.missing == dict.fromkeys(OF_TWO_READINGS, FIRST_READING)
    assert sensor.read().network_sent_bytes_per_second is not None
    assert host.pressure is not None
    assert host.pressure.memory == Stall(1.5, 0.25, 0.5, 0.1)
    assert host.pressure.io is None


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
