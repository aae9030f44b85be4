"""Half a minute of random operations and kills; `scripts/faults` has ten minutes of others.

A round that fails prints its seed: `python -m harness.faults.interleavings --seed N`.
"""

from __future__ import annotations

from pathlib import Path

from harness.faults.interleavings import STEPS, live_round
from harness.left_groups import remove_groups
from harness.soak.trouble import nvml_library

SEED = 103


def test_no_job_is_lost_doubled_or_stuck(tmp_path: Path, tensors: Path) -> None:
    found = live_round(tmp_path / "round", tensors, nvml_library(tmp_path), SEED, STEPS)
    remove_groups(tmp_path / "round")
    assert found.wrong == []
    assert sum(found.done.values()) > STEPS // 2
