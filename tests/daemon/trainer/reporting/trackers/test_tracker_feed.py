"""What rank 0 hands over: nothing that a tracker's process does holds it up."""

from __future__ import annotations

import sys
from pathlib import Path

from zerotoolsd.trainer.reporting.trackers.tracker_feed import SAID, TrackerFeed

COPY = "import sys; sys.stdout.flush(); open(sys.argv[1], 'w').write(sys.stdin.read())"
HANG = "import time; time.sleep(3600)"


def feed(code: str, *arguments: str, close_seconds: float = 60, most: int = 20_000) -> TrackerFeed:
    """A feed of a process that runs `code`."""
    return TrackerFeed(
        "wandb",
        {"id": "x"},
        command=(sys.executable, "-S", "-c", code, *arguments),
        close_seconds=close_seconds,
        most_waiting=most,
    )


def test_lines_come_in_order_and_the_end_at_the_end(tmp_path: Path) -> None:
    tracked = feed(COPY, str(tmp_path / "lines"))
    assert tracked.append(1, {"loss": float("nan")}) is None
    assert tracked.append(2, {"loss": 0.5}) is None
    tracked.ends_as("done")
    assert tracked.close() is None
    assert (tmp_path / "lines").read_text().splitlines() == [
        '{"id": "x"}',
        '{"step": 1, "fields": {"loss": NaN}}',
        '{"step": 2, "fields": {"loss": 0.5}}',
        '{"end": "done"}',
    ]


def test_one_that_hangs_is_noted_once_and_ended() -> None:
    tracked = feed(HANG, close_seconds=0.2, most=5)
    fields = {"loss": 1.0, "name" * 5000: 1.0}  # of which a few fill the pipe
    said = [tracked.append(step, fields) for step in range(50)]
    assert [problem for problem in said if problem] == [
        "5 steps wait for it already, and it makes no progress"
    ]
    assert tracked.close() == "it did not end within 0.2 s, and was ended"


def test_one_that_ends_is_noted_once() -> None:
    tracked = feed("raise SystemExit(7)")
    tracked._process.wait()
    said = [tracked.append(step, {}) for step in range(3)]
    assert [problem for problem in said if problem] == ["its process ended (7)"]
    assert tracked.close() is None


def test_one_that_ends_while_nothing_is_handed_over_is_noted_at_the_end() -> None:
    tracked = feed("import sys; sys.stdin.read(); raise SystemExit(7)")
    assert tracked.append(1, {}) is None
    assert tracked.close() == "its process ended (7)"


def test_one_that_has_said_why_is_not_noted_again() -> None:
    tracked = feed(f"raise SystemExit({SAID})")
    tracked._process.wait()
    assert tracked.append(1, {}) is None
    assert tracked.close() is None
