"""What other versions of torch write of the same cases is read the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_files import GOLDEN, TORCH
from tests.regenerated import differences

# Its version, the options of its optimizers, and where archives have their records.
MAY_DIFFER = (
    "truth.json says other things",
    "lies elsewhere",
    "another state beside the tensors",
    "another training state",
)
CASES = sorted(
    path.parent
    for version in ("2.6.0", "2.15.0")
    for path in GOLDEN.glob(f"torch-{version}/*/truth.json")
)


@pytest.mark.parametrize("case", CASES, ids=lambda path: "-".join(path.parts[-2:]))
def test_a_case_of_another_version_is_the_committed_one(case: Path) -> None:
    said = differences(case, TORCH / case.name)
    assert [each for each in said if not each.endswith(MAY_DIFFER)] == []


def test_there_are_cases_of_both() -> None:
    assert {path.parent.name for path in CASES} == {"torch-2.6.0", "torch-2.15.0"}
