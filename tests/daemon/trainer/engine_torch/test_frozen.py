"""Frozen parameters stay as they are and have no state, wherever that is."""

from pathlib import Path

import pytest

from harness.launching import job, start
from tests.matrices import FULL

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("rank_frozen.py")


def test_the_trained_half_alone_moves(tmp_path: Path, text: Path) -> None:
    if FULL:
        (tmp_path / "full").touch()
    attempt = start(tmp_path, job(text, ranks=2), script=SCRIPT)
    assert attempt.finish() == [0] * 2, attempt.log()
