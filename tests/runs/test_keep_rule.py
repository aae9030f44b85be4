from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.runs.keep_rule import KeepRule


@pytest.mark.parametrize(
    ("rule", "goes"),
    [
        (KeepRule(), []),
        (KeepRule(every=4), []),
        (KeepRule(3), [4, 2]),
        (KeepRule(1, 4), [6, 2]),
        (KeepRule(9, 4), []),
    ],
)
def test_what_may_go_of_steps_2_to_10(rule: KeepRule, goes: list[int]) -> None:
    listed = [Path(f"step-{step:08d}") for step in (10, 8, 6, 4, 2)]
    assert rule.beyond(listed) == [Path(f"step-{step:08d}") for step in goes]
