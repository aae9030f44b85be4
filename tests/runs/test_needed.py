from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.runs.needed import Needed, needed_by


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
    need = Needed(7, "resume_from", text)
    assert (needed_by(Path("/runs/a/step-00000040"), [need]) == need) is named
