"""The number of the last change is noted where no log can lose it."""

from __future__ import annotations

from pathlib import Path

from zerotools.jobs.client.queue_copies import LAST_CHANGE
from zerotoolsd.queue import schema
from zerotoolsd.queue.last_change import LastChange


def test_what_was_noted_is_read_whatever_became_of_the_process(tmp_path: Path) -> None:
    assert schema.last_change(tmp_path) == 0
    mark = LastChange(tmp_path, 4)
    for number in (5, 1234567, 8):
        mark.note(number)
        assert schema.last_change(tmp_path) == number
    mark.close()
    mark.close()
    mark.note(9)
    assert schema.last_change(tmp_path) == 8
    (tmp_path / LAST_CHANGE).write_text("damaged")
    assert schema.last_change(tmp_path) == 0
