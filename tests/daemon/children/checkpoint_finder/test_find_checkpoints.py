"""The search for checkpoints, over real ones of every kind: which count, when, which is chosen."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import DEEPSPEED, GOLDEN, JOB
from zerotoolsd.children.checkpoint_finder.candidate_checkpoints import candidates_in
from zerotoolsd.children.checkpoint_finder.find_checkpoints import (
    CheckpointSearch,
    main,
    start_search,
)
from zerotoolsd.supervisor.run_checkpoint_finder import LAST

TRAINER = DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint" / "checkpoint-2"
TAG = DEEPSPEED / "z1-bf16-w2-offload" / "checkpoint"
FSDP = GOLDEN / "torch-2.13.0-fsdp2" / "two_ranks"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    directory = tmp_path / "out"
    directory.mkdir()
    return directory


def settings_of(
    out: Path, *told: Path, given: str | None = None, reported: Sequence[Path] = ()
) -> dict[str, Any]:
    return {
        "checkpoint_dir": str(out),
        "before": str(out.parent / "before.json"),
        "told": [str(path) for path in told],
        "reported": [str(path) for path in reported],
        "given": given,
    }


def search(out: Path, *told: Path, **more: Any) -> CheckpointSearch:
    return CheckpointSearch(settings_of(out, *told, **more))


def put(source: Path, target: Path, seconds: int) -> Path:
    """A copy, last written so long after 1970."""
    shutil.copytree(source, target)
    date(target, seconds)
    return target


def date(path: Path, seconds: int) -> None:
    for file in (path, *path.rglob("*")):
        os.utime(file, (seconds, seconds))


def news(one: CheckpointSearch, *, at_rest: bool = True) -> list[tuple[str, Any]]:
    return [(Path(each["path"]).name, each["step"]) for each in one.news(at_rest=at_rest)]


def test_checkpoints_of_every_kind_are_found_with_their_steps(out: Path) -> None:
    one = search(out)
    put(TRAINER, out / "checkpoint-2", 1)
    put(FSDP, out / "step_40", 2)
    put(JOB, out / "step-00000003", 3)
    (out / "runs").mkdir()
    (out / "runs" / "events.out").write_text("x")
    assert news(one) == [("checkpoint-2", 2), ("step_40", 40), ("step-00000003", 3)]
    assert news(one) == []


def test_a_last_search_reports_what_is_there_and_ends(
    out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    search(out)
    put(TRAINER, out / "checkpoint-2", 1)
    (out.parent / "finder.json").write_text(json.dumps(settings_of(out)))
    assert main([str(out.parent / "finder.json"), LAST]) == 0
    said = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert said == [{"path": str(out / "checkpoint-2"), "step": 2}]


def test_a_save_directory_of_deepspeed_is_found_by_its_tags(out: Path) -> None:
    one = search(out)
    shutil.copytree(TAG, out, dirs_exist_ok=True)
    (tag,) = (path.name for path in TAG.iterdir() if path.is_dir())
    assert news(one) == [(tag, 2)]


def test_a_directory_that_is_a_checkpoint_itself_and_single_files(out: Path) -> None:
    one = search(out)
    shutil.copytree(FSDP, out, dirs_exist_ok=True)
    assert news(one) == [("out", None)]
    files = out.parent / "files"
    files.mkdir()
    model = next((DEEPSPEED / "z0-fp32-w2" / "checkpoint").rglob("mp_rank_00_model_states.pt"))
    shutil.copy(model, files / "epoch=0-step=500.ckpt")
    (files / "notes.txt").write_text("x")
    assert [(c.path.name, c.number) for c in candidates_in(files)] == [
        ("epoch=0-step=500.ckpt", 500)
    ]


def test_what_is_still_written_to_is_waited_for(out: Path) -> None:
    one = search(out)
    path = put(TRAINER, out / "checkpoint-2", 1)
    assert news(one, at_rest=False) == []
    (path / "rng_state_1.pth").touch()
    assert news(one, at_rest=False) == []
    assert news(one, at_rest=False) == [("checkpoint-2", 2)]
    date(path, 9)  # written once more, under the same name
    assert news(one, at_rest=False) == []
    assert news(one, at_rest=False) == [("checkpoint-2", 2)]


@pytest.mark.parametrize("name", [".checkpoint-2", "tmp-checkpoint-2", "checkpoint-2.tmp", "a_tmp"])
def test_temporary_names_are_left_alone(out: Path, name: str) -> None:
    shutil.copytree(TRAINER, out / name)
    assert candidates_in(out) == []


def damage(path: Path, how: str) -> None:
    if how == "trainer not done":
        (path / "trainer_state.json").unlink()
    elif how == "cut off":
        file = path / "scheduler.pt"
        file.write_bytes(file.read_bytes()[:-30])
    elif how == "no rank 1":
        next(path.rglob("*zero_pp_rank_1_mp_rank_00_optim_states.pt")).unlink()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("trainer not done", "no trainer_state.json, which the Trainer writes last"),
        ("cut off", "scheduler.pt is truncated: the end of the zip archive is missing"),
        ("no rank 1", "is missing; the run had 2 ranks"),
    ],
)
def test_one_that_is_not_whole_is_passed_over_for_an_older_one(
    out: Path, how: str, why: str
) -> None:
    search(out)
    old = put(TRAINER, out / "checkpoint-2", 1)
    damage(put(TRAINER, out / "checkpoint-4", 2), how)
    date(out / "checkpoint-4", 2)
    later = search(out)
    choice = later.choose()
    assert choice["resume_from"] == str(old)
    (over,) = choice["passed_over"]
    assert over["path"] == str(out / "checkpoint-4")
    assert why in over["why"]
    assert news(later) == []


def test_what_was_there_before_the_job_is_not_its_own_until_it_changes(out: Path) -> None:
    path = put(TRAINER, out / "checkpoint-2", 1)
    first = search(out, given="/given")
    assert first.choose() == {"resume_from": "/given", "passed_over": [], "lost": None}
    assert news(first) == []
    date(path, 5)
    assert search(out, given="/given").choose()["resume_from"] == str(path)


def test_what_ranks_told_of_counts_in_formats_that_nobody_knows_too(
    out: Path, tmp_path: Path
) -> None:
    search(out)
    put(TRAINER, out / "checkpoint-2", 1)
    own = tmp_path / "state.json"
    own.write_text(json.dumps({"step": 3}))
    gone = tmp_path / "gone"
    choice = search(out, gone, own, reported=[gone, own]).choose()
    assert (choice["resume_from"], choice["lost"]) == (str(own), None)
    assert choice["passed_over"] == [{"path": str(gone), "why": f"{gone} does not exist any more"}]


def test_a_job_whose_reported_checkpoints_are_all_damaged_does_not_begin_anew(out: Path) -> None:
    search(out)
    newest = put(TRAINER, out / "checkpoint-4", 2)
    damage(newest, "cut off")
    assert search(out).choose()["lost"] is None  # nobody said that it had been whole
    lost = search(out, newest, given="/given").choose()["lost"]
    assert "no checkpoint of this job is complete" in lost
    assert f"{newest / 'scheduler.pt'} is truncated" in lost
    put(TRAINER, out / "checkpoint-2", 1)
    assert search(out, newest).choose()["lost"] is None


def test_while_the_machine_gives_errors_nothing_is_called_damaged_or_gone(out: Path) -> None:
    one = search(out)
    saved = put(TRAINER, out / "checkpoint-2", 1)
    later = search(out, saved)
    settings = {
        "checkpoint_dir": str(out),
        "before": str(out / "b"),
        "told": [],
        "reported": [],
        "given": None,
    }
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            later.choose()
        assert news(one) == []
        found, answer = start_search(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found is None
    assert answer["not_ready"].endswith(" cannot be searched for checkpoints: Too many open files")
    assert later.choose()["resume_from"] == str(saved)
    assert news(one) == [("checkpoint-2", 2)]


def test_a_directory_that_is_not_there_yet(out: Path) -> None:
    one = search(out / "later")
    assert one.choose() == {"resume_from": None, "passed_over": [], "lost": None}
    put(FSDP, out / "later" / "step-7", 1)
    assert news(one) == [("step-7", 7)]


def test_a_link_to_the_newest_is_no_checkpoint_of_its_own(out: Path) -> None:
    one = search(out)
    put(TRAINER, out / "checkpoint-2", 1)
    (out / "latest").symlink_to("checkpoint-2")
    assert news(one) == [("checkpoint-2", 2)]
    elsewhere = put(TRAINER, out.parent / "scratch" / "checkpoint-4", 2)
    (out / "checkpoint-4").symlink_to(elsewhere)
    assert [name for name, _ in news(one)] == ["checkpoint-4"]
