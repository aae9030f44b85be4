"""How far a function is: callbacks and bars."""

from __future__ import annotations

from zerotools.public.progress import ProgressBars, ProgressUpdate, metering


class Bar:
    def __init__(self, made: list[list[object]], total: int, stage: str) -> None:
        self.said: list[object] = [stage, total]
        made.append(self.said)

    def advance(self, count: int) -> None:
        self.said.append(count)

    def close(self) -> None:
        self.said.append("closed")


def test_every_stage_has_a_bar_of_its_own() -> None:
    made: list[list[object]] = []
    bars = ProgressBars(lambda total, stage: Bar(made, total, stage))
    for update in (("read", 3, 10), ("read", 10, 10), ("write", 1, 5), ("write", 2, 5)):
        bars(ProgressUpdate(*update))
    bars(ProgressUpdate("write", 1, 5))  # another output, of the same size
    bars.close()
    bars.close()
    assert made == [
        ["read", 10, 3, 7, "closed"],
        ["write", 5, 1, 1, "closed"],
        ["write", 5, 1, "closed"],
    ]


def test_a_stage_that_ends_is_complete_and_one_that_fails_is_not() -> None:
    told: list[ProgressUpdate] = []
    with metering(told.append) as meter:
        with meter(10, "read") as advance:
            advance(4)
            advance(3)
        with meter(10, "empty"):
            pass
        try:
            with meter(10, "write") as advance:
                advance(4)
                raise OSError
        except OSError:
            pass
    assert [(each.stage, each.done) for each in told] == [
        *(("read", 4), ("read", 7), ("read", 10)),
        ("write", 4),
    ]


def test_nobody_needs_to_be_told() -> None:
    for wanted in (None, False):
        with metering(wanted) as meter, meter(10, "read") as advance:
            advance(10)
