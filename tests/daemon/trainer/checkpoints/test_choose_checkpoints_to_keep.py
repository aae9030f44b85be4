import json
import shutil
from pathlib import Path

import pytest

from tests.runs.test_find_job_checkpoints import make
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.checkpoints.choose_checkpoints_to_keep import (
    EVALUATIONS,
    KeepPolicy,
    late_evaluations,
)
from zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints import (
    Committer,
    do_nothing,
)
from zerotoolsd.trainer.save_during_training import CheckpointMetrics


def steps(paths: list[Path]) -> list[int]:
    return sorted(find_job_checkpoints.step_of(path.name) or 0 for path in paths)


def fill(output_dir: Path, losses: dict[int, float | None]) -> Path:
    for step, loss in losses.items():
        newest = make(output_dir, step, measured={} if loss is None else {"loss": loss})
    return newest


def test_what_is_older_than_the_last_goes_but_what_is_pinned_stays(tmp_path: Path) -> None:
    newest = fill(tmp_path, dict.fromkeys(range(10, 80, 10)))
    assert KeepPolicy().to_delete(tmp_path, newest) == []
    assert steps(KeepPolicy(last=2).to_delete(tmp_path, newest)) == [10, 20, 30, 40, 50]
    assert steps(KeepPolicy(last=2, every=20).to_delete(tmp_path, newest)) == [10, 30, 50]
    named = tmp_path / "link"
    named.symlink_to(tmp_path / find_job_checkpoints.directory_name(30))
    find_job_checkpoints.write_hint(
        tmp_path, find_job_checkpoints.BEST, find_job_checkpoints.directory_name(10)
    )
    kept = KeepPolicy(last=1, every=20, named=named)
    assert steps(kept.to_delete(tmp_path, newest)) == [50]


def test_what_another_job_names_stays_and_that_is_said_once(tmp_path: Path) -> None:
    output, needed = tmp_path / "real", tmp_path / "needed"
    newest = fill(output, dict.fromkeys(range(10, 50, 10)))
    (tmp_path / "runs").symlink_to(output)
    needed.mkdir()
    first, second = (find_job_checkpoints.directory_name(step) for step in (10, 20))
    told = {"job": 7, "named": [["resume_from", str(output / first)]]}
    (needed / "7").write_text(json.dumps(told))
    told = {"job": 8, "named": [["script.command", f"--from={output}/{second}/model.bin"]]}
    (needed / "8").write_text(json.dumps(told))
    (needed / "9").write_bytes(b"\xff")
    (needed / "10").write_text('{"job": 10, "named": [3]}')
    said: list[str] = []
    keeping = KeepPolicy(last=1, needed=needed)
    committer = Committer(tmp_path / "runs", keeping, lambda path: None, log_line=said.append)
    for _ in range(2):
        assert committer.tidy(tmp_path / "runs" / newest.name) is None
        assert steps(find_job_checkpoints.list_checkpoints(output)) == [10, 20, 40]
    assert said == [
        f"{tmp_path}/runs/{second} is old but kept: job 8 names it in script.command",
        f"{tmp_path}/runs/{first} is old but kept: job 7 names it in resume_from",
    ]
    shutil.rmtree(needed)
    assert committer.tidy(tmp_path / "runs" / newest.name) is None
    assert steps(find_job_checkpoints.list_checkpoints(output)) == [40]


def test_the_best_is_the_smallest_and_of_equals_the_first(tmp_path: Path) -> None:
    newest = fill(tmp_path, {10: 2.0, 20: 1.5, 30: 1.5, 40: None})
    assert KeepPolicy().best_of(tmp_path, newest) is None
    keeping = KeepPolicy(best="loss")
    best = keeping.best_of(tmp_path, newest)
    assert best == tmp_path / find_job_checkpoints.directory_name(20)
    assert KeepPolicy(best="eval_loss").best_of(tmp_path, newest) is None
    better = fill(tmp_path, {50: 1.4})
    assert keeping.best_of(tmp_path, better, best) == better


def test_the_best_is_found_again_where_its_checkpoint_is_lost(tmp_path: Path) -> None:
    newest = fill(tmp_path, {10: 1.0, 20: 1.2, 30: 1.1})
    keeping, best = KeepPolicy(best="loss"), tmp_path / find_job_checkpoints.directory_name(10)
    assert keeping.best_of(tmp_path, newest, best) == best
    shutil.rmtree(best)
    assert keeping.best_of(tmp_path, newest, best) == newest
    # The best one itself is written anew, and is worse now.
    shutil.rmtree(newest)
    worse = fill(tmp_path, {30: 3.0})
    assert keeping.best_of(
        tmp_path, worse, worse
    ) == tmp_path / find_job_checkpoints.directory_name(20)


def test_the_best_of_another_metric_is_not_the_best(tmp_path: Path) -> None:
    """As in a run that is resumed with another `checkpoint.best`."""
    newest = fill(tmp_path, {10: 1.0, 20: 1.2, 30: 1.1})
    find_job_checkpoints.write_hint(
        tmp_path, find_job_checkpoints.BEST, find_job_checkpoints.directory_name(20)
    )
    committer = Committer(tmp_path, KeepPolicy(best="loss"), do_nothing)
    assert committer.tidy(newest) is None
    best = find_job_checkpoints.hinted_checkpoint(tmp_path, find_job_checkpoints.BEST)
    assert best == tmp_path / find_job_checkpoints.directory_name(10)


def test_an_evaluation_after_the_save_counts_for_the_checkpoint(tmp_path: Path) -> None:
    for step, loss in ((10, 1.5), (20, None), (30, 1.4)):
        make(tmp_path, step, measured={} if loss is None else {"eval_loss": loss})
    committer = Committer(tmp_path, KeepPolicy(best="eval_loss"), do_nothing)
    assert committer.tidy(tmp_path / find_job_checkpoints.directory_name(30)) is None
    committer.add_evaluation(20, 1.3)
    best = find_job_checkpoints.hinted_checkpoint(tmp_path, find_job_checkpoints.BEST)
    assert best == tmp_path / find_job_checkpoints.directory_name(20)
    assert best is not None
    shutil.rmtree(best)
    committer.add_evaluation(30, 1.6)  # without the entry of the deleted one
    assert late_evaluations(tmp_path) == {find_job_checkpoints.directory_name(30): 1.6}
    (tmp_path / EVALUATIONS).write_text("[")
    assert late_evaluations(tmp_path) == {}


def test_a_checkpoint_that_cannot_be_read_is_not_the_best(tmp_path: Path) -> None:
    newest = fill(tmp_path, {10: 1.0, 20: 1.2})
    (tmp_path / find_job_checkpoints.directory_name(10) / find_job_checkpoints.RECORD).write_text(
        "{}"
    )
    assert KeepPolicy(best="loss").best_of(tmp_path, newest) == newest


def test_the_loss_of_a_checkpoint_is_the_mean_since_the_one_before() -> None:
    measured = CheckpointMetrics()
    measured.stepped(2.0)
    measured.stepped(1.0)
    measured.evaluated(2, 1.75)
    assert measured.pop_losses(2) == {"loss": 1.5, "eval_loss": 1.75}
    measured.save_ended(2, is_saved=True)
    measured.stepped(0.5)
    assert measured.pop_losses(3) == {"loss": 0.5}
    measured.stepped(1.5)
    measured.save_ended(3, is_saved=False)  # the disk was full
    assert measured.pop_losses(4) == {"loss": 1.0}
    assert measured.pop_losses(4) == {}
    measured.stepped(float("inf"))
    assert measured.pop_losses(5) == {}


@pytest.mark.parametrize("hint", [find_job_checkpoints.LATEST, find_job_checkpoints.BEST])
def test_a_job_resumes_from_what_a_hint_names(tmp_path: Path, hint: str) -> None:
    fill(tmp_path, {10: 1.0, 20: 2.0})
    find_job_checkpoints.write_hint(tmp_path, hint, find_job_checkpoints.directory_name(10))
    assert find_job_checkpoints.resolve_resume_from(
        tmp_path / hint
    ).path == tmp_path / find_job_checkpoints.directory_name(10)
