"""Stage 1 sends every row round: also where ranks have fewer rows than others, or none."""

from pathlib import Path

import pytest

from harness.launching import job, start

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("rank_partition.py")


def test_every_rank_gets_what_the_others_updated(tmp_path: Path, text: Path) -> None:
    attempt = start(tmp_path, job(text, ranks=3), script=SCRIPT)
    assert attempt.finish() == [0] * 3, attempt.log()
