from __future__ import annotations

from pathlib import Path

from zerotools.sensors.host import FIRST_READING, NO_PRESSURE, HostSensor, parse_stall
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
