"""Which checkpoints of a run's directory are meant."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from tests.ops.thinning.made import thinned
from zerotools.core.errors import BadRequest
from zerotools.ops.thinning.select_checkpoints import checkpoints_in, paths_of, select_for_thinning

TAG = DEEPSPEED / "z1-fp32-w1" / "checkpoint" / "global_step2"
NOW = 2e9


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints of steps 9 to 12, of which the first is the youngest, and one that is called
    otherwise."""
    for number, name in enumerate(("global_step12", "global_step11", "global_step10")):
        _tag(tmp_path / name, age_days=number)
    _tag(tmp_path / "global_step9", age_days=0)
    _tag(tmp_path / "best", age_days=50)
    _tag(tmp_path / ".global_step9.zerotools-thin" / "global_step9", age_days=0)
    return tmp_path


def _tag(path: Path, age_days: float) -> None:
    shutil.copytree(TAG, path)
    for file in path.iterdir():
        os.utime(file, (NOW - age_days * 86400, NOW - age_days * 86400))


def chosen(run: Path, **rules: float | int | None) -> list[str]:
    wanted = {"keep_last": None, "keep_every": None, "older_than": None, **rules}
    found = select_for_thinning(run, now=NOW, **wanted)  # type: ignore[arg-type]
    assert len(found.chosen) + len(found.stays) == 5
    return [path.name for path in paths_of(found.chosen)]


def test_by_number_and_not_by_age(run: Path) -> None:
    assert chosen(run, keep_last=2) == ["global_step9", "global_step10"]
    assert chosen(run, keep_last=0) == [f"global_step{n}" for n in (9, 10, 11, 12)]
    assert chosen(run, keep_every=5) == ["global_step9", "global_step11"]


def test_the_newest_stays_unless_somebody_says_otherwise(run: Path) -> None:
    assert chosen(run, older_than=0.5 * 86400) == ["global_step10", "global_step11"]
    assert "global_step12" in chosen(run, keep_last=0, older_than=-1)


def test_what_latest_names_stays(run: Path) -> None:
    (run / "latest").write_text("global_step10")
    assert chosen(run, keep_last=1) == ["global_step9", "global_step11"]
    stays = dict(
        select_for_thinning(run, keep_last=1, keep_every=None, older_than=None, now=NOW).stays
    )
    assert stays[run / "global_step10"] == "latest names it"
    assert "does not end in a step" in stays[run / "best"]


def test_what_best_names_stays(run: Path) -> None:
    shutil.rmtree(run / "best")
    (run / "best").write_text("global_step10\n")
    found = select_for_thinning(run, keep_last=1, keep_every=None, older_than=None, now=NOW)
    assert dict(found.stays)[run / "global_step10"] == "best names it"
    (run / "best").write_bytes(b"\xff")  # no hint, but a file of the user's
    found = select_for_thinning(run, keep_last=1, keep_every=None, older_than=None, now=NOW)
    assert run / "global_step10" in paths_of(found.chosen)


def test_a_checkpoint_is_not_a_run(run: Path) -> None:
    assert checkpoints_in(run / "best") == []
    with pytest.raises(BadRequest, match="is not the directory of a run: it contains no"):
        select_for_thinning(run / "best", keep_last=1, keep_every=None, older_than=None, now=NOW)


def test_one_that_was_thinned_is_as_old_as_before(tmp_path: Path) -> None:
    for name, days in (("a", 3), ("b", 2), ("c", 1)):
        _tag(tmp_path / name, age_days=days)
    thinned(tmp_path / "b")
    assert [each.path.name for each in checkpoints_in(tmp_path)] == ["a", "b", "c"]
    rules = {"keep_last": 1, "keep_every": None, "older_than": None}
    found = select_for_thinning(tmp_path, now=NOW, **rules)  # type: ignore[arg-type]
    assert [path.name for path, _ in found.stays] == ["c"]
