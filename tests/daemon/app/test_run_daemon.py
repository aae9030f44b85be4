from __future__ import annotations

import logging

from zerotoolsd.app.run_daemon import MOST, WINDOW_SECONDS, LogLimit


def record(level: int, line: int, message: str = "trouble %d") -> logging.LogRecord:
    return logging.LogRecord("zerotoolsd", level, "a.py", line, message, (7,), None)


def test_a_flood_is_cut_and_counted() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    assert sum(limit.filter(record(logging.ERROR, 1)) for _ in range(1000)) == MOST
    assert limit.filter(record(logging.ERROR, 2))  # another place
    assert all(limit.filter(record(logging.INFO, 1)) for _ in range(1000))
    now = WINDOW_SECONDS
    first = record(logging.ERROR, 1)
    assert limit.filter(first)
    assert first.getMessage() == "trouble 7 (980 more messages like this were left out)"
    now = 3 * WINDOW_SECONDS
    after = record(logging.ERROR, 1)
    assert limit.filter(after)
    assert after.getMessage() == "trouble 7"
