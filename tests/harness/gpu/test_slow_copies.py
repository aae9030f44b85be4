"""The delay of copies: it comes before each, and the copy is what it was."""

from __future__ import annotations

from typing import Any

from harness.gpu.slow_copies import delayed


def test_a_copy_is_made_after_its_delay() -> None:
    done = list[Any]()

    class Copies:
        def to_host(self, source: int, target: int) -> int:
            done.append((source, target))
            return source

    delayed(Copies, "to_host", lambda copies: done.append(type(copies)))
    assert Copies().to_host(1, 2) == 1
    assert done == [Copies, (1, 2)]
