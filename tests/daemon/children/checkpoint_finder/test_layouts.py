"""A job resumes from its newest whole checkpoint, over layouts drawn at random."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.daemon.children.checkpoint_finder.layouts import (
    draw,
    model_and_average,
    one_file,
    own_file,
    tensors,
)
from tests.daemon.children.checkpoint_finder.test_find_checkpoints import news, search
from tests.matrices import examples
from zerotoolsd.children.checkpoint_finder.candidate_checkpoints import candidates_in

SEEDS = examples(150)


@pytest.mark.parametrize("block", range(5))
def test_a_job_goes_on_from_its_newest_whole_checkpoint(tmp_path: Path, block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        out = tmp_path / str(seed) / "out"
        out.mkdir(parents=True)
        search(out)  # it was empty when the job began
        layout = draw(seed, out)
        reported = list(reversed(layout.reported))
        choice = search(out, *reported[:1], reported=reported).choose()
        sound = [path for path in layout.reported if path in layout.whole] or layout.whole
        expected = str(sound[-1]) if sound else None
        assert choice["resume_from"] == expected, f"seed {seed}: {choice}"
        is_lost = expected is None and bool(reported)
        assert (choice["lost"] is not None) == is_lost, f"seed {seed}: {choice}"
        passed = [each["path"] for each in choice["passed_over"]]
        assert set(passed) <= {str(path) for path in layout.cut}, f"seed {seed}: {choice}"


@pytest.mark.parametrize("block", range(3))
def test_each_whole_checkpoint_is_found_once_and_nothing_else(tmp_path: Path, block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        out = tmp_path / str(seed) / "out"
        out.mkdir(parents=True)
        one = search(out)
        layout = draw(seed, out)
        if layout.reported:
            continue
        found = [Path(each["path"]) for each in one.news(at_rest=True)]
        assert found == layout.whole, f"seed {seed}"


def test_files_numbered_by_step_are_one_checkpoint_each(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    one = search(out)
    first, second = one_file(out / "step-5"), one_file(out / "step-35")
    assert news(one) == [("step-35.safetensors", 35), ("step-5.safetensors", 5)][::-1]
    choice = search(out, second).choose()
    assert (choice["resume_from"], choice["passed_over"]) == (str(second), [])
    second.write_bytes(second.read_bytes()[:-3])
    choice = search(out, second).choose()
    assert choice["resume_from"] == str(first)
    assert choice["lost"] is None


@pytest.mark.parametrize("place", ["", "weights"])
def test_a_file_that_is_always_written_anew_counts_beside_those_of_steps(
    tmp_path: Path, place: str
) -> None:
    """Lightning keeps the best epoch and `last.ckpt`, others `epoch10.pt`, `last.pt`, `best.pt`."""
    out = tmp_path / "out"
    for name in ("epoch=3-step=40", "last", "best", "optimizer", "last-v1"):
        one_file(out / place / name)
    found = {each.path.name for each in candidates_in(out)}
    assert found == {f"{name}.safetensors" for name in ("epoch=3-step=40", "last", "last-v1")}
    numbers = {each.path.name: each.number for each in candidates_in(out)}
    assert numbers["last-v1.safetensors"] is None
    assert numbers["epoch=3-step=40.safetensors"] == 40
    (out / place / "epoch=3-step=40.safetensors").unlink()
    if not place:
        assert len(candidates_in(out)) == 4  # without a number each file may be the one


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        ("model-step-5 optim-step-5 model-step-9 optim-step-9", "model-step-9"),
        ("net optimizer", "net"),
        ("last scheduler", "last"),
        ("epoch_2 best_coco_epoch_1", "epoch_2"),
        ("agent_step_9 replay_buffer_step_9", "agent_step_9"),
        ("optimizer", "optimizer"),
        ("weights/last weights/best", "weights/last"),
        ("run/weights/last run/weights/best", "run/weights/last"),
        ("lightning_logs/version_0/checkpoints/epoch=3-step=9",) * 2,
        ("results/checkpoints/m-epoch=3 results/checkpoints/m-last", "results/checkpoints/m-last"),
        ("checkpoint-9/model best/model", "checkpoint-9"),
        ("checkpoint-9/model last/model", "last"),
    ],
)
def test_what_lies_beside_a_checkpoint_is_not_taken_for_one(
    tmp_path: Path, names: str, newest: str
) -> None:
    """Whatever of it was written last."""
    out, clock = tmp_path / "out", 1_000_000_000
    out.mkdir()
    search(out)
    for name in names.split():
        path = one_file(out / name)
        os.utime(path, (clock := clock + 10, clock))
    expected = next(path for path in (out / newest, out / f"{newest}.safetensors") if path.exists())
    assert search(out).choose()["resume_from"] == str(expected)


def test_a_model_beside_files_of_steps_does_not_change_with_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    tensors(out / "model.safetensors")
    before = {each.path: each.fingerprint for each in candidates_in(out)}
    assert list(before) == [out]
    one_file(out / "step-5")
    after = {each.path: each.fingerprint for each in candidates_in(out)}
    assert set(after) == {out, out / "step-5.safetensors"}
    assert after[out] == before[out]


def test_what_was_reported_comes_before_what_was_found(tmp_path: Path) -> None:
    """A newer file of the same program, which it did not call a checkpoint, is none."""
    out = tmp_path / "out"
    out.mkdir()
    search(out)
    reported = own_file(out / "step-5")
    tensors(out / "best-99" / "model.safetensors")
    one = search(out, reported, reported=[reported])
    assert one.choose()["resume_from"] == str(reported)
    assert news(one) == []


def test_what_was_reported_is_known_by_each_of_its_names(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "link").symlink_to(out)
    search(out)
    made = model_and_average(out / "step-5")
    reported = tmp_path / "link" / made.name
    choice = search(out, reported, reported=[reported]).choose()
    assert (choice["resume_from"], choice["lost"]) == (str(reported), None)


def test_an_older_version_knew_all_files_of_a_directory_as_one(tmp_path: Path) -> None:
    """Its record says what was there before the job: that stays so."""
    out = tmp_path / "out"
    one_file(out / "step-5")
    before = tmp_path / "before.json"
    before.write_text(f'{{"{out}": "fingerprint"}}')
    assert search(out).choose()["resume_from"] is None
    later = one_file(out / "step-35")
    os.utime(later, (2**31, 2**31))
    assert search(out).choose()["resume_from"] == str(later)
