from __future__ import annotations

from zerotools.cli.top.reading.cached_value import CachedValue


def test_a_value_is_kept_for_its_time_and_for_what_it_is_about() -> None:
    now = [0.0]
    reads = iter(range(10))
    value: CachedValue[int] = CachedValue(10.0, lambda: now[0])
    assert [value.get(lambda: next(reads), "a") for _ in range(3)] == [0, 0, 0]
    assert value.get(lambda: next(reads), "b") == 1
    now[0] = 10.0
    assert value.get(lambda: next(reads), "b") == 2


def test_what_takes_long_is_read_less_often() -> None:
    now = [0.0]
    count = [0]

    def read() -> int:
        now[0] += 1.0
        count[0] += 1
        return count[0]

    value: CachedValue[int] = CachedValue(10.0, lambda: now[0])
    assert value.get(read) == 1
    now[0] = 49.0
    assert value.get(read) == 1
    now[0] = 50.0
    assert value.get(read) == 2
