"""What a rush of clients took is given back when it is over, and only then."""

from __future__ import annotations

from zerotoolsd.http.api.listeners.trim_memory import RUSH, MemoryTrimmer, give_back


def test_a_rush_that_is_over_is_noticed_once() -> None:
    ends: list[int] = []
    watch = MemoryTrimmer(lambda: ends.append(1))
    for connections in (3, RUSH - 1, 0, RUSH, RUSH * 5, RUSH, RUSH * 5 // 8 + 1):
        watch.look(connections)
    assert ends == []
    watch.look(RUSH * 5 // 8)
    watch.look(0)
    assert ends == [1]
    watch.look(RUSH)
    watch.look(2)
    assert ends == [1, 1]


def test_it_can_be_asked_on_any_machine() -> None:
    give_back()
