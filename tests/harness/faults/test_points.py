"""Which points there are, which are tried, and how they are counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.faults.points import Found, Totals, points_of, sampled
from harness.faults.tracing import ERRORS, Injection


class Told:
    """A story of which nothing is lived."""

    name = "told"

    def run(self, place: Path, injection: Injection | None) -> Found:
        raise NotImplementedError


CALLS = Counter({"fsync": 2, "rename": 1})


def test_every_call_is_a_point() -> None:
    kills = list(points_of(Told(), CALLS, kills=True, errors=False))
    assert [str(p) for p in kills] == [
        "told, kill at fsync 1",
        "told, kill at fsync 2",
        "told, kill at rename 1",
    ]
    errors = list(points_of(Told(), CALLS, kills=False, errors=True))
    assert len(errors) == len(ERRORS) * len(kills)
    assert errors[0].injection.options[-1] == "inject=fsync:error=ENOSPC:when=1..4"


def test_what_opens_files_fails_and_is_not_killed_at() -> None:
    calls = Counter({"openat": 2})
    assert list(points_of(Told(), calls, kills=True, errors=False)) == []
    found = list(points_of(Told(), calls, kills=False, errors=True))
    assert [str(p) for p in found] == ["told, EMFILE at openat 1", "told, EMFILE at openat 2"]


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    points = list(points_of(Told(), Counter({"fsync": 100}), kills=True, errors=False))
    chosen = sampled(points, 10, 3)
    assert chosen == sampled(points, 10, 3) != sampled(points, 10, 4)
    assert len(chosen) == 10
    assert sampled(points, None, 3) == sampled(points, 1000, 3) == points


def test_what_is_wrong_is_counted_by_its_kind() -> None:
    totals = Totals()
    totals.add("a", Found(hit=True))
    totals.add("b", Found(hit=False, wrong=["job 1 ran again after", "pid 3 runs outside"]))
    totals.add("c", Found(hit=True, wrong=["job 2 failed: disk", "job 3 was lost"], unseen=1))
    assert str(totals) == ("3 kill points, 1 lost, 1 doubled, 1 orphaned, 1 failed by the machine")
    assert (totals.missed, totals.unseen) == (1, 1)
    assert totals.sentences[0] == "c: job 3 was lost"
