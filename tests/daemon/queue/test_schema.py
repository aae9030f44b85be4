"""The number of the last change is noted where no log can lose it."""

from __future__ import annotations

from pathlib import Path

from zerotools.jobs.client.queue_backup import DATABASE, LAST_CHANGE
from zerotoolsd.queue.schema import LastChange, highest_numbers, last_change


def test_what_was_noted_is_read_whatever_became_of_the_process(tmp_path: Path) -> None:
    assert last_change(tmp_path) == 0
    mark = LastChange(tmp_path, 4, 2)
    for number in (5, 1234567, 8):
        mark.note(number)
        assert last_change(tmp_path) == number
    mark.close()
    mark.close()
    mark.note(9)
    assert last_change(tmp_path) == 8
    (tmp_path / LAST_CHANGE).write_text("damaged")
    assert last_change(tmp_path) == 0
    assert highest_numbers(tmp_path) == (0, 0)


def test_the_highest_numbers_are_known_of_queues_that_were_moved_aside_too(tmp_path: Path) -> None:
    assert highest_numbers(tmp_path) == (0, 0)
    mark = LastChange(tmp_path, 4, 2)
    mark.note(5, 3)
    mark.note(6)
    mark.close()
    assert highest_numbers(tmp_path) == (6, 3)
    (tmp_path / LAST_CHANGE).rename(tmp_path / f"{DATABASE}.before-20261122-101010.last-change")
    LastChange(tmp_path, 1, 1).close()
    assert highest_numbers(tmp_path) == (6, 3)
    (tmp_path / f"{DATABASE}.odd.last-change").mkdir()
    (tmp_path / f"{DATABASE}.huge.last-change").write_text(f"1\n{'9' * 60}\n")
    (tmp_path / f"{DATABASE}.first.last-change").write_text(f"{7:020}\n")  # without a job
    assert highest_numbers(tmp_path) == (7, 3)
