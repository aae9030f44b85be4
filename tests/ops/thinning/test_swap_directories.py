"""A run is killed at every system call that changes something: the checkpoint is always whole."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from harness.syscalls import IS_SUPPORTED, run_until
from tests.matrices import FULL
from tests.ops.thinning.made import BUDGET, contents, copy_of, thinned
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.thinning_changes import Keep
from zerotools.formats import detect
from zerotools.io.output.staging import exchange_names
from zerotools.ops.inspection.completeness import check_completeness
from zerotools.ops.thinning.carry_out_thinning import carry_out_thinning
from zerotools.ops.thinning.swap_directories import Workspace, clear_left
from zerotools.ops.thinning.thin_plan import prepare_thinning
from zerotools.runs.thinning_record import workspace_of

CASES = {
    "deepspeed-0.19.8/z2-bf16-w2": ("global_step2", Keep.WEIGHTS),
    "deepspeed-0.19.8/z3-bf16-w2": ("global_step2", Keep.MASTERS),
    "zerotools-0.1.0/step-00000003": ("", Keep.MASTERS),
}


@pytest.mark.skipif(not IS_SUPPORTED, reason="the numbers of system calls are those of x86-64")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.full if "deepspeed" in case else ())
        for case in sorted(CASES)
    ],
)
def test_a_kill_at_any_system_call_leaves_the_whole_checkpoint(case: str, tmp_path: Path) -> None:
    below, keep = CASES[case]
    original = copy_of(case, tmp_path / "original")
    before = contents(original / below)
    work = tmp_path / "work"

    def again() -> Path:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(original, work)
        return work / below

    thinned(again(), keep)  # which imports what only the first run would, and writes it down
    path = again()
    every = run_until(lambda: thinned(path, keep)).calls
    after = contents(path)
    assert after != before
    _check_order(every)
    for number in _numbers(every):
        path = again()
        killed = run_until(lambda: thinned(path, keep), number)  # noqa: B023
        assert killed.status is None, (number, every[number])
        found = contents(path)
        assert found in (before, after), (number, every[number])
        left = workspace_of(path)
        if left.exists():
            assert detect(work).path in (work, path), "nobody takes what is left for a checkpoint"
            assert check_completeness(work).problem is None
            if found == before:
                assert thinned(path, keep).plan.has_work
            else:
                assert not thinned(path, keep).plan.has_work
            assert not left.exists()
            assert contents(path) == after


def _numbers(calls: list[str]) -> list[int]:
    """Those around the exchange, and the last ones; of the others, which fill the copy and remove
    the old one, some, or all where everything is run."""
    exchange = max(n for n, call in enumerate(calls) if call == "renameat2")
    some = {*range(exchange - 2, exchange + 5), *range(len(calls) - 3, len(calls))}
    return [n for n in range(len(calls)) if FULL or n % 64 == 0 or n in some]


def _check_order(calls: list[str]) -> None:
    """What is written is flushed before the exchange, and the exchange before the old copy goes."""
    probe, exchange = (n for n, call in enumerate(calls) if call == "renameat2")
    assert probe < exchange
    writes = [n for n, call in enumerate(calls) if call in ("pwrite64", "copy_file_range", "link")]
    assert max(writes, default=0) < exchange
    flushed = [n for n, call in enumerate(calls) if call == "fsync"]
    assert any(max(writes) < n < exchange for n in flushed)
    made = calls[:exchange].count("ftruncate")  # beside them the record, and directories
    assert sum(n < exchange for n in flushed) > made + 1
    removed = next(n for n, call in enumerate(calls) if n > exchange and "unlink" in call)
    assert any(exchange < n < removed for n in flushed)


def test_a_file_system_without_the_exchange_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    def of_nfs(first: Path, second: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    path = copy_of("deepspeed-0.19.8/z1-fp32-w1", tmp_path) / "global_step2"
    before = contents(tmp_path)
    with pytest.raises(Unsupported, match=r"cannot exchange two names in one step .*copy it to"):
        carry_out_thinning(prepare_thinning(path, Keep.MASTERS), budget=BUDGET, exchange=of_nfs)
    assert contents(tmp_path) == before
    assert not workspace_of(path).exists()


def test_what_is_written_in_the_last_moment_takes_the_exchange_back(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z1-fp32-w1", tmp_path) / "global_step2"

    def late(first: Path, second: Path) -> None:
        if second == path:
            (path / "mp_rank_00_model_states.pt").write_bytes(b"a save of the run")
        exchange_names(first, second)

    with pytest.raises(BadFile, match=r"changed while its new copy was made: it was written"):
        carry_out_thinning(prepare_thinning(path, Keep.MASTERS), budget=BUDGET, exchange=late)
    assert (path / "mp_rank_00_model_states.pt").read_bytes() == b"a save of the run"
    assert not workspace_of(path).exists()


def test_two_runs_do_not_share_a_workspace(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z1-fp32-w1", tmp_path) / "global_step2"
    with Workspace(path), pytest.raises(BadRequest, match="another run is thinning"):
        thinned(path)
    assert thinned(path).checked is not None


def test_what_is_left_of_protected_directories_is_removed_too(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    (path / "kept").mkdir(mode=0o555)
    left = workspace_of(path) / path.name / "kept"
    left.mkdir(parents=True)
    (left / "file").touch()
    left.chmod(0o555)
    thinned(path)
    assert not workspace_of(path).exists()
    assert (path / "kept").stat().st_mode & 0o777 == 0o555


def test_a_directory_that_must_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    before = contents(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write to all
    with pytest.raises(BadRequest, match=r"without write permission for you.*chmod u\+w"):
        thinned(path)
    assert contents(tmp_path) == before
    assert not workspace_of(path).exists()


def test_what_is_left_is_cleared_and_a_run_at_work_is_not(tmp_path: Path) -> None:
    for name in ("gone", "busy"):
        left = workspace_of(tmp_path / name)
        left.mkdir()
    with Workspace(tmp_path / "busy") as busy:
        (workspace_of(tmp_path / "gone") / "data").write_bytes(b"x" * 7)
        (tmp_path / ".a link.zerotools-thin").symlink_to(tmp_path)
        assert clear_left(tmp_path) == 7
        assert busy.copy.parent.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [".a link.zerotools-thin"]
    assert clear_left(tmp_path / "nothing") == 0


def test_a_link_in_place_of_the_directory_beside_is_not_followed(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path / "a") / "global_step2"
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letters").write_text("kept")
    workspace_of(path).symlink_to(tmp_path / "home")
    before = contents(path)
    with pytest.raises(BadRequest, match="is a symbolic link"):
        thinned(path, Keep.WEIGHTS)
    assert (tmp_path / "home/letters").read_text() == "kept"
    assert contents(path) == before


def test_what_is_written_runs_as_nobody_else(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z3-bf16-w2", tmp_path / "a") / "global_step2"
    for file in path.iterdir():
        file.chmod(0o4755)
    plan = prepare_thinning(path, Keep.MASTERS)
    written = [name for name in plan.rewritten if name in plan.entries.status]
    assert written
    carry_out_thinning(plan, budget=BUDGET)
    assert {stat.S_IMODE((path / name).stat().st_mode) for name in written} == {0o755}


def test_a_file_that_takes_the_place_of_one_that_stays(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path / "a") / "global_step2"
    plan = prepare_thinning(path, Keep.WEIGHTS)
    stays = next(n for n in plan.entries.files() if n not in plan.removed | plan.rewritten.keys())
    (path / stays).rename(tmp_path / "aside")
    (path / stays).symlink_to("/etc/passwd")
    with pytest.raises(BadFile, match="another file has replaced it"):
        plan.entries.check_same(stays, path / stays)
    with pytest.raises(BadFile, match="changed while"):
        carry_out_thinning(plan, budget=BUDGET)
