from __future__ import annotations

from tests.cli.top.made_looks import GIB, a_look, job_of, meaning_in, text_of
from zerotools.cli.top.drawing.process_rows import process_lines
from zerotools.cli.top.reading.gpu_holders import GpuHolder


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
