from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fake_gpu_probe import fake_gpu
from tests.cli.top.made_looks import GIB, a_look, eight_gpus, job_of, meaning_in, text_of
from zerotools.cli.top.drawing.gpu_rows import ROWS, gpu_charts, gpu_lines, process_lines
from zerotools.cli.top.drawing.styled_lines import width
from zerotools.cli.top.reading.gpu_holders import GpuHolder
from zerotools.sensors.snapshot import Gpu, GpuProcess


@pytest.mark.parametrize("columns", [60, 72, 80, 110, 160, 200, 300])
def test_a_gpu_is_one_line_that_fits(columns: int) -> None:
    lines = gpu_lines(a_look(job_of(3)), columns, 20, headed=False)
    assert len(lines) == 8
    assert {width(line) for line in lines} == {columns}
    texts = [text_of(line) for line in lines]
    assert "job 3" in texts[0]
    assert "bob: python" in texts[4]
    assert "XID 79 free" in texts[6]
    assert texts[7].rstrip().endswith("NVML: GPU is lost")
    assert meaning_in(lines[7], "lost") == "bad"


def test_what_slows_a_gpu_down_is_calm_only_where_that_is_usual() -> None:
    lines = gpu_lines(a_look(job_of(3)), 110, 20, headed=True)[1:]
    assert meaning_in(lines[0], "MHz") == "quiet"
    assert "▼" not in text_of(lines[0])
    assert "1410MHz▼" in text_of(lines[2])
    assert meaning_in(lines[2], "MHz") == "warning"
    assert "hot job 3" in text_of(lines[2])
    assert meaning_in(lines[3], "MHz") == "quiet"
    assert "ECC 12 power job 3" in text_of(lines[3])
    assert "ECC 2! nobody" in text_of(lines[5])
    narrow = gpu_lines(a_look(job_of(3)), 80, 20, headed=False)
    assert "ECC" not in text_of(narrow[3])
    assert "hot job 3" in text_of(narrow[2])


def test_power_and_its_limit() -> None:
    assert "70/700W" in text_of(gpu_lines(a_look(job_of(3)), 80, 20, headed=False)[0])
    assert "70W" in text_of(gpu_lines(a_look(job_of(3)), 60, 20, headed=False)[0])
    unknown = Gpu(index=0, memory_total_bytes=80 * GIB, memory_used_bytes=GIB)
    assert " - " in text_of(gpu_lines(a_look(gpus=[unknown]), 80, 20, headed=False)[0])


def test_a_gpu_of_two_names_both() -> None:
    gpu = fake_gpu(0, used_gib=30, processes=[GpuProcess(8, 29 * GIB)])
    line = gpu_lines(a_look(job_of(3), gpus=[gpu]), 120, 5, headed=False)[0]
    assert "job 3 (tiny) + bob: python train.py" in text_of(line)
    assert meaning_in(line, "bob") == "stranger"


def test_the_header_stands_above_its_columns() -> None:
    header, first, *_ = (
        text_of(line) for line in gpu_lines(a_look(job_of(3)), 110, 20, headed=True)
    )
    for word, value in (("GiB", "71.0/80G"), ("power", "70/700W"), ("temp", "40°")):
        assert header.index(word) + len(word) == first.index(value) + len(value)
    assert header.index("who") == first.index("job 3")


def test_the_past_is_drawn_where_the_screen_is_wide() -> None:
    past = {"gpu.GPU-fake-0.memory_used_bytes": [None, 0.0, 80.0 * GIB]}
    look = a_look(job_of(3), past=past, is_hour=True)
    header, first, *_ = (text_of(line) for line in gpu_lines(look, 200, 20, headed=True))
    assert "hour: mem" in header
    assert "recent: busy" in text_of(gpu_lines(a_look(job_of(3)), 130, 20, headed=True)[0])
    assert "▁█" in first
    header, first, *_ = (text_of(line) for line in gpu_lines(look, 100, 20, headed=True))
    assert "mem 1h" in header
    assert "▁█" in first
    assert "▁█" not in text_of(gpu_lines(look, 99, 20, headed=True)[1])


def test_memory_that_is_almost_full_is_coloured() -> None:
    for used_gib, meaning in ((70, ""), (77, "warning"), (79.5, "bad")):
        gpus = [fake_gpu(0, used_gib=used_gib)]
        line = gpu_lines(a_look(job_of(3), gpus=gpus), 80, 20, headed=False)[0]
        assert meaning_in(line, "/80G") == meaning, used_gib


def test_old_gpus_are_shown_as_old_and_none_says_why() -> None:
    look = a_look()
    old = replace(look.snapshot, gpus_error="NVML did not answer within 2 s", gpus_age_seconds=75)
    lines = gpu_lines(replace(look, snapshot=old), 80, 20, headed=False)
    assert text_of(lines[0]) == "GPUs as of 1 min ago: NVML did not answer within 2 s"
    assert len(lines) == 9
    assert text_of(gpu_lines(a_look(gpus=[]), 80, 20, headed=True)[0]) == "GPUs  no NVML: not here"


def test_where_there_is_no_room_the_rest_is_told_in_short() -> None:
    gpus = [*eight_gpus(), *(fake_gpu(n, used_gib=10) for n in range(8, 16))]
    lines = gpu_lines(a_look(job_of(3), gpus=gpus), 80, 10, headed=False)
    assert len(lines) == 10
    assert text_of(lines[-1]) == "   and 7 more: 0 busy, 70.0/560G"
    few = gpu_lines(a_look(job_of(3)), 80, 4, headed=False)
    assert text_of(few[-1]).endswith("1 with errors")


def test_a_process_is_one_line_whatever_gpus_it_is_on() -> None:
    lines = process_lines(a_look(job_of(3)), 80, 9)
    assert [text_of(line) for line in lines[1:]] == [
        "       7  280.0 GiB  0-3      job 3 (tiny)",
        "       8   23.0 GiB  4        bob: python train.py",
    ]
    assert meaning_in(lines[2], "bob") == "stranger"


def test_memory_that_is_not_known_is_a_dash() -> None:
    holders = {
        0: (GpuHolder(7, "a\x1b", "job", None),),
        1: (GpuHolder(7, "a\x1b", "job", GIB),),
    }
    line = text_of(process_lines(a_look(holders=holders), 80, 9)[1])
    assert line.split() == ["7", "-", "0-1", "a\\x1b"]


def test_more_than_there_is_room_for_are_counted() -> None:
    holders = {0: tuple(GpuHolder(pid, "x", "stranger", GIB) for pid in range(1, 11))}
    look = a_look(holders=holders)
    lines = process_lines(look, 80, 4)
    assert (len(lines), text_of(lines[-1]).strip()) == (4, "and 8 more")
    assert process_lines(look, 80, 1) == []
    assert process_lines(a_look(gpus=[]), 80, 9) == []


GPUS = [fake_gpu(0), fake_gpu(1)]
TOTAL = GPUS[0].memory_total_bytes or 0


def test_the_mean_of_all_gpus_over_the_last_hour() -> None:
    past = {
        "gpu.GPU-fake-0.utilization_percent": [None, 100.0, 100.0],
        "gpu.GPU-fake-1.utilization_percent": [0.0, 100.0],
        "gpu.GPU-fake-0.memory_used_bytes": [TOTAL / 2, TOTAL / 2, TOTAL / 4],
    }
    drawn = gpu_charts(a_look(job_of(3), gpus=GPUS, past=past, is_hour=True), 121)
    lines = [text_of(line) for line in drawn]
    assert len(lines) == ROWS
    assert lines[0].split("   ")[0] == "busy 100%, mean of 2 GPUs, the last hour, at most 100%"
    assert "memory 25%, the last hour, at most 50%" in lines[0]
    top, bottom = lines[1], lines[-1]
    assert top[:6] == "100% │"
    assert bottom[:6] == "  0% │"
    assert max(map(len, lines)) == 121
    busy = [line[6:59] for line in lines[1:]]
    assert [row.count("█") for row in busy] == [17, 17, 17, 35, 35]
    assert busy[2].count("▄") == 18
    assert {row[0] for row in busy} == {" "}, "nothing was measured there"


def test_no_chart_without_a_past() -> None:
    assert gpu_charts(a_look(job_of(3), gpus=GPUS), 120) == []
    assert gpu_charts(a_look(job_of(3), gpus=[]), 120) == []
