"""What may be asked of a drill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.chaos.chaos_options import (
    LEAST_ROOM,
    ChaosOptions,
    check_free_space,
    make_request,
)


def asked(tmp_path: Path, **changes: Any) -> ChaosOptions:
    usual = {"minutes": 2.0, "seed": None, "every": 3.0, "jobs": 4, "directory": tmp_path}
    return make_request(**{**usual, "keep": False, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"minutes": 0.0}, "--minutes 0.0: must be between 0.1 and 120"),
        ({"minutes": -2.0}, "--minutes -2.0: must be between 0.1 and 120"),
        ({"minutes": 1e9}, "--minutes 1000000000.0: must be between 0.1 and 120"),
        ({"minutes": float("nan")}, "--minutes nan: must be between 0.1 and 120"),
        ({"every": 0.0}, "--every 0.0: must be between 0.1 and 600"),
        ({"every": 121.0}, "--every 121.0: is longer than the whole test (--minutes 2.0 = 120 s)"),
        ({"jobs": 0}, "--jobs 0: must be between 1 and 64"),
        ({"jobs": 65}, "--jobs 65: must be between 1 and 64"),
        ({"seed": -1}, "--seed -1: must be between 0 and 4294967295"),
        ({"directory": Path("/nowhere")}, "--directory /nowhere: is not a directory"),
    ],
)
def test_what_is_out_of_range_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        asked(tmp_path, **changes)
    assert said in str(refused.value)


def test_a_seed_is_chosen_where_none_is_given(tmp_path: Path) -> None:
    assert 0 <= asked(tmp_path).seed < 10_000
    assert asked(tmp_path, seed=7).seed == 7
    assert asked(tmp_path, directory=None).directory.is_dir()
    assert asked(tmp_path, minutes=0.5).trouble_seconds == 30.0


def test_a_disk_that_would_be_full_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as refused:
        check_free_space(tmp_path, LEAST_ROOM - 1)
    assert "63 MiB are free there, but zerotools chaos needs 64 MiB; free some space" in str(
        refused.value
    )
    check_free_space(tmp_path, LEAST_ROOM)
