"""Some random operations and kills; `scripts/faults` has ten minutes of others.

A round that fails prints its seed: `python -m harness.faults.interleavings --seed N`.
"""

from __future__ import annotations

from pathlib import Path

from harness.faults.interleavings import STEPS, live_round
from harness.left_groups import remove_groups
from harness.soak.trouble import nvml_library
from tests.matrices import FULL

SEED = 103
FEW = STEPS if FULL else STEPS // 2


def test_no_job_is_lost_doubled_or_stuck(tmp_path: Path, tensors: Path) -> None:
    found = live_round(tmp_path / "round", tensors, nvml_library(tmp_path), SEED, FEW)
    remove_groups(tmp_path / "round")
    assert found.wrong == []
    assert sum(found.done.values()) > FEW // 2
