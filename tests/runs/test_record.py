"""What a record says of the data that a resumed run reads."""

from __future__ import annotations

import pytest

from zerotools.runs.record import DataRecord

A, B, C = "0a a.jsonl", "0b b.jsonl", "0c c.jsonl"


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        ((A, B), (A, B), ""),
        ((), (A, B), ""),  # the record is older
        ((A, B), ("0a renamed.jsonl", B), ""),
        ((A, B), (B, A), "the same files in another order"),
        ((A, B), (A, "0d b.jsonl"), "b.jsonl changed"),
        ((A, B), (A, C), "b.jsonl no longer read, c.jsonl new"),
        ((A,), tuple(f"{n} {n}.txt" for n in range(5)), None),
    ],
)
def test_changes_of_the_files(
    before: tuple[str, ...], now: tuple[str, ...], changes: str | None
) -> None:
    found = DataRecord(1, 1, 1, before).changes(DataRecord(1, 1, 1, now))
    expected = "a.jsonl no longer read, 0.txt and 1.txt and 2.txt and 2 more new"
    assert found == (expected if changes is None else changes)
