from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cli.top.made_looks import GIB, HOST, a_look, meaning_in, text_of
from zerotools.cli.top.drawing.host_rows import host_lines
from zerotools.cli.top.drawing.styled_lines import width
from zerotools.cli.top.reading.disk_reader import DiskSpace
from zerotools.cli.top.reading.read_screen_values import ScreenData
from zerotools.sensors.snapshot import Host, Pressure, Stall


def look_of(host: Host = HOST, *disks: DiskSpace) -> ScreenData:
    look = a_look(disks=disks or (DiskSpace("/data", 3500 * GIB, 812 * GIB),))
    return replace(look, snapshot=replace(look.snapshot, host=host))


@pytest.mark.parametrize("columns", [60, 80, 110, 200])
def test_two_lines_hold_what_matters(columns: int) -> None:
    lines = host_lines(look_of(), columns, 2)
    assert len(lines) <= 2
    assert all(width(line) <= columns for line in lines)
    text = "\n".join(map(text_of, lines))
    for part in ("34%", "load 12.1", "92.0/512G", "mem 0", "cpu 1.2", "io 25", "1.1G", "3.2M"):
        assert part in text
    assert ("812G free" in text) is (columns >= 80)


def test_a_swap_that_is_used_matters_more_than_a_bar() -> None:
    assert "RAM 92.0/512G swap 1.0G " in text_of(host_lines(look_of(), 80, 2)[0])
    unused = replace(HOST, swap_used_bytes=0)
    assert "RAM ━━╌╌╌╌╌╌╌╌ 92.0/512G " in text_of(host_lines(look_of(unused), 80, 2)[0])


def test_more_disks_take_another_line_and_the_fullest_comes_first() -> None:
    disks = [DiskSpace(f"/d{n}", 100 * GIB, 50 * GIB) for n in range(9)]
    lines = host_lines(look_of(HOST, *disks), 80, 3)
    assert len(lines) == 3
    assert [f"/d{n} " in "\n".join(map(text_of, lines)) for n in (0, 4, 5)] == [True, True, False]


def test_a_disk_that_is_full_silent_or_read_only_stands_out() -> None:
    full = DiskSpace("/full", 100 * GIB, GIB)
    silent = DiskSpace("/net/very/long/path/of/a/server", why="does not answer")
    frozen = DiskSpace("/frozen", 100 * GIB, 50 * GIB, is_read_only=True)
    (line,) = host_lines(look_of(HOST, full, silent, frozen), 400, 1)
    assert meaning_in(line, "1.0G free") == "bad"
    assert meaning_in(line, "does not answer") == "bad"
    assert meaning_in(line, "read-only") == "bad"


def test_what_stalls_is_warned_of_but_for_processors() -> None:
    busy = replace(HOST, pressure=Pressure(Stall(6.0, 0.0), Stall(90.0, 0.0), Stall(25.0, 0.0)))
    (line,) = host_lines(look_of(busy), 200, 1)
    assert [meaning_in(line, text) for text in ("6.0", "90", "25")] == ["warning", "", "bad"]


def test_a_narrow_cell_of_pressure_has_memory_and_disk() -> None:
    busy = replace(HOST, pressure=Pressure(Stall(6.2, 0.0), Stall(95.0, 0.0), Stall(3.8, 0.0)))
    assert "PSI% mem 6.2 io 3.8" in text_of(host_lines(look_of(busy), 80, 2)[0])
    assert "PSI% mem 6.2 cpu 95 io 3.8" in text_of(host_lines(look_of(busy), 120, 2)[0])


def test_what_is_not_known_is_a_dash() -> None:
    unknown = replace(
        HOST,
        cpu_percent=None,
        network_received_bytes_per_second=None,
        network_sent_bytes_per_second=None,
        pressure=None,
        swap_total_bytes=0,
        swap_used_bytes=0,
    )
    text = "\n".join(map(text_of, host_lines(look_of(unknown), 80, 2)))
    assert "PSI" not in text
    assert "swap" not in text
    assert "↓    -" in text


def test_the_past_is_drawn_where_there_is_room() -> None:
    past = {"host.cpu_percent": [0.0, 100.0], "host.network_sent_bytes_per_second": [1.0, 2.0]}
    look = replace(look_of(), past=past)
    assert "▁█" in "".join(map(text_of, host_lines(look, 200, 2)))
    assert "▁█" not in "".join(map(text_of, host_lines(look, 80, 2)))
