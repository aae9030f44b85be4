"""What `[limits]` takes."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.jobs.jobfile_tables.limits import LimitsSpec, check_limits


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"memory": "64GiB", "memory_high": "60 GB", "io_read": 5}, None),
        ({"memory": "much"}, 'limits.memory = "much": is not a size; write 5GB, 512MiB or'),
        ({"memory": 0}, "limits.memory = 0: is less than one byte"),
        ({"io_write": -1}, "limits.io_write = -1: is not a size"),
        ({"memory_high": "9" * 40}, "is not a size"),
        ({"memory_high": "99999999999TiB"}, "is more than any machine has"),
        ({"memory": "1GiB", "memory_high": "2GiB"}, "must not be more than limits.memory = "),
    ],
)
def test_sizes_are_checked_by_name(values: dict[str, Any], problem: str | None) -> None:
    found = list(check_limits(LimitsSpec(**values)))
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]
