from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.runs.deletable_checkpoints import KeepRule, NeededCheckpoint, first_need


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("/runs/a/step-00000040", True),
        ("/runs/a/step-00000040/model", True),
        ("--resume=/runs/a/step-00000040", True),
        ("/runs/a/step-000000400", False),
        ("/runs/a/step-00000040.bak", False),
        ("/runs/b/step-00000040", False),
        ("/runs/a", False),
    ],
)
def test_a_text_names_a_checkpoint_or_what_is_in_it(text: str, named: bool) -> None:
    need = NeededCheckpoint(7, "resume_from", text)
    assert (first_need(Path("/runs/a/step-00000040"), [need]) == need) is named


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
