"""What thinning leaves, for every kind of checkpoint, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.golden_files import JOB
from tests.ops.thinning.made import BUDGET, contents, copy_of, thinned
from tests.ops.verification.damage import flip, largest_record
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.thinning_changes import Keep
from zerotools.ops.comparison.checkpoint_diff import DiffOptions, diff
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.thinning.carry_out_thinning import carry_out_thinning
from zerotools.ops.thinning.thin_plan import prepare_thinning
from zerotools.ops.verification import verify as verification
from zerotools.ops.verification.digest_manifest import sidecar_of, write_digest_manifest
from zerotools.ops.verification.verification_result import Soundness
from zerotools.runs import find_job_checkpoints
from zerotools.runs.thinning_record import read_thinned, workspace_of

W, M = Keep.WEIGHTS, Keep.MASTERS
KINDS = {
    # what is asked for, what stays
    "deepspeed-0.19.8/z1-bf16-w4": (W, W),
    "deepspeed-0.19.8/z2-fp32-w2": (W, W),
    "deepspeed-0.19.8/z2-bf16-w3": (M, M),
    "deepspeed-0.19.8/z1-bf16-w3-elastic-sgd": (M, M),
    "deepspeed-0.19.8/z3-bf16-w3-sub-groups": (W, M),
    "deepspeed-0.19.8/bf16-optimizer-w2": (W, M),
    "deepspeed-0.19.8/z0-bf16-w2": (W, W),
    "deepspeed-0.19.8/z0-fp16-w1": (M, M),
    "deepspeed-0.19.8/pipeline-z1-fp32-w4": (W, M),
    "deepspeed-0.19.8/tensor-parallel-z1-bf16-w4": (W, W),
    "deepspeed-0.19.8/experts-z2-bf16-w2": (W, W),
    "deepspeed-0.19.8/z2-fp32-w2-legacy": (M, M),
    "deepspeed-0.19.8/universal-z3-bf16-w2": (W, M),
    "continued/hf-trainer": (W, M),
    "continued/fsdp2-accelerate": (M, M),
    "continued/fsdp2-dcp": (M, M),
    "torch-2.13.0/fsdp2-tp-dcp-w4": (M, M),
    "torch-2.13.0/fsdp2-verl-w3": (M, M),
    "torch-2.13.0/training-file": (M, M),
    "zerotools-0.1.0/step-00000003": (M, M),
}


@pytest.mark.parametrize("case", sorted(KINDS))
def test_the_weights_of_every_kind_stay_and_its_state_goes(case: str, tmp_path: Path) -> None:
    asked, stays = KINDS[case]
    path = copy_of(case, tmp_path)
    before = formats.read_any(path)
    plan = prepare_thinning(path, asked)
    done = carry_out_thinning(plan, budget=BUDGET)
    assert done.checked is not None
    assert plan.thinning.keep == stays
    after = formats.read_any(path)
    assert {key.role for key in after.tensors} <= {"param", "param16", "buffer", "state"}
    assert {key.name for key in after.tensors} == {
        key.name for key in before.tensors if key.role in ("param", "param16", "buffer", "state")
    }
    found = verification.carry_out_verify(verification.prepare_verify(path))
    assert not found.findings
    if plan.subject.is_dir():  # a file has no room for a record
        assert "training cannot resume from it" in " ".join(found.checkpoint.origin.notes)
    assert not prepare_thinning(path, asked).has_work
    assert plan.bytes_after < plan.bytes_before


@pytest.mark.parametrize("keep", [W, M])
def test_weights_and_export_are_equal_before_and_after(keep: Keep, tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path)
    shutil.copytree(path, tmp_path / "before")
    thinned(path, keep)
    exports = []
    for source in (tmp_path / "before", path):
        out = tmp_path / f"{source.name}-export"
        conversion = consolidate.prepare_export(source, out, consolidate.Options())
        perform_conversion(conversion, budget=BUDGET, overwrite=False)
        exports.append((out / "model.safetensors").read_bytes())
    assert exports[0] == exports[1]
    tolerance = "cast" if keep == W else "bits"
    options = DiffOptions(roles=("param",), tolerance=tolerance)
    assert diff(tmp_path / "before", path, options).is_equal


def test_a_job_says_that_it_cannot_go_on_and_its_manifest_is_true(tmp_path: Path) -> None:
    shutil.copytree(JOB, tmp_path / JOB.name)
    path = tmp_path / JOB.name
    assert find_job_checkpoints.newest_valid(tmp_path).path == path
    done = thinned(path)
    assert done.checked is not None
    assert done.checked.soundness is Soundness.WHOLE
    assert find_job_checkpoints.verify_checkpoint_files(path).weights_only
    chosen = find_job_checkpoints.newest_valid(tmp_path)
    assert chosen.path is None
    assert "was thinned" in chosen.skipped[0].why
    assert read_thinned(path) is not None


def test_the_manifest_of_before_still_describes_what_is_left(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    found = verification.carry_out_verify(verification.prepare_verify(path), digests=True)
    assert found.manifest is not None
    sidecar = sidecar_of(found.files)
    write_digest_manifest(found.manifest, sidecar, found.files)
    thinned(path, W)
    again = verification.carry_out_verify(verification.prepare_verify(path))
    assert again.verdict is Soundness.WHOLE
    assert again.comparison is not None
    assert again.comparison.path == sidecar
    assert again.comparison.tensors == 13
    flip(path / "mp_rank_00_model_states.pt", largest_record(path / "mp_rank_00_model_states.pt"))
    assert (
        verification.carry_out_verify(verification.prepare_verify(path)).verdict is Soundness.FAULTY
    )


def test_lost_optimizer_files_are_no_thinned_checkpoint(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    thinned(path, M)
    for file in path.glob("*optim_states.pt"):
        file.unlink()
    assert "missing, so the checkpoint has no masters" in formats.read_any(path).problems[0].message
    assert Key("cube.weight", "param16") in formats.read_any(path).tensors


def test_damage_in_what_stays_is_refused_and_in_what_goes_is_not(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    model, optim = (next(path.glob(f"*_{kind}_states.pt")) for kind in ("model", "optim"))
    flip(model, largest_record(model))
    before = contents(tmp_path)
    with pytest.raises(BadFile, match=r"has problems, and nothing was changed: .*--force thins it"):
        thinned(path, W)
    assert contents(tmp_path) == before
    assert thinned(path, W, force=True).checked is not None
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path / "other") / "global_step2"
    optim = path / optim.name
    flip(optim, largest_record(optim))
    assert thinned(path, W).checked is not None


def test_leftovers_of_another_save_are_refused_without_force(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-fp32-w2-leftovers", tmp_path) / "final"
    with pytest.raises(BadFile, match=r"belongs to .*--force thins it anyway"):
        thinned(path)
    assert thinned(path, force=True).checked is not None


def test_a_file_that_is_open_for_writing_is_refused(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z1-fp32-w1", tmp_path) / "global_step2"
    with (
        (path / "mp_rank_00_model_states.pt").open("r+b"),
        pytest.raises(BadRequest, match=r"is open for writing: a program is saving there"),
    ):
        thinned(path)
    assert thinned(path).checked is not None


def test_what_changes_between_plan_and_thinning_is_refused(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z1-fp32-w1", tmp_path) / "global_step2"
    plan = prepare_thinning(path, M)
    (path / "notes.txt").write_text("new")
    with pytest.raises(BadFile, match=r"notes.txt changed .*: it is new"):
        carry_out_thinning(plan, budget=BUDGET)
    assert not workspace_of(path).exists()


def test_without_room_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy_of("deepspeed-0.19.8/z1-fp32-w1", tmp_path) / "global_step2"
    usage = shutil.disk_usage(path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4096))
    before = contents(tmp_path)
    with pytest.raises(
        BadRequest, match=r"needs \d+ more bytes of disk .* has 4096 bytes free; free some space"
    ):
        thinned(path)
    assert contents(tmp_path) == before


def test_links_stay_links_and_other_names_keep_the_old_bytes(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    optim = next(path.glob("*optim_states.pt"))
    backup = tmp_path / "backup.pt"
    backup.hardlink_to(optim)
    old = backup.read_bytes()
    (tmp_path / "elsewhere.txt").write_text("far")
    (path / "readme.txt").symlink_to(tmp_path / "elsewhere.txt")
    model = path / "mp_rank_00_model_states.pt"
    inode, time = model.stat().st_ino, model.stat().st_mtime_ns
    plan = prepare_thinning(path, W)
    assert plan.shared == optim.stat().st_size
    carry_out_thinning(plan, budget=BUDGET)
    assert backup.read_bytes() == old
    assert (path / "readme.txt").readlink() == tmp_path / "elsewhere.txt"
    assert (model.stat().st_ino, model.stat().st_mtime_ns) == (inode, time)
    assert model.stat().st_nlink == 1


def test_where_files_cannot_have_two_names_all_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path) / "global_step2"
    model = path / "mp_rank_00_model_states.pt"
    inode, data, time = model.stat().st_ino, model.read_bytes(), model.stat().st_mtime_ns

    def refused(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refused)
    done = thinned(path, W)
    assert done.checked is not None
    assert done.checked.compared == 13
    assert model.stat().st_ino != inode
    assert (model.read_bytes(), model.stat().st_mtime_ns) == (data, time)


def test_modes_and_times_stay(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z3-bf16-w2", tmp_path) / "global_step2"
    optim = next(path.glob("*optim_states.pt"))
    optim.chmod(0o640)
    os.utime(optim, (1e9, 1e9))
    path.chmod(0o750)
    size = optim.stat().st_size
    thinned(path)
    assert optim.stat().st_size < size
    assert (optim.stat().st_mode & 0o777, optim.stat().st_mtime) == (0o640, 1e9)
    assert path.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (
            lambda p: (p.parent / "link").symlink_to(p),
            BadRequest,
            "is a symbolic link; name its target",
        ),
        (lambda p: os.mkfifo(p / "pipe"), Unsupported, "is neither a file nor a directory"),
        (lambda p: (p / "out").symlink_to("../x"), Unsupported, "outside of the checkpoint"),
    ],
)
def test_what_cannot_be_made_anew_is_refused(
    make: object, kind: type[Exception], match: str, tmp_path: Path
) -> None:
    path = copy_of("deepspeed-0.19.8/z1-fp32-w1", tmp_path) / "global_step2"
    assert callable(make)
    make(path)
    link = path.parent / "link"
    with pytest.raises(kind, match=match):
        thinned(link if link.exists() else path)


def test_optimizer_state_alone_has_nothing_that_would_stay(tmp_path: Path) -> None:
    path = copy_of("torch-2.13.0/fsdp2-dcp-w3", tmp_path) / "optimizer_0"
    with pytest.raises(BadRequest, match="holds no weights, so nothing would stay"):
        prepare_thinning(path, M)


def test_several_checkpoints_are_not_guessed_among(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2-tags", tmp_path)
    with pytest.raises(BadRequest, match=r"holds 3 checkpoints: name those to thin"):
        prepare_thinning(path, M)


def test_weights_alone_have_nothing_to_drop(tmp_path: Path) -> None:
    path = copy_of("torch-2.13.0/fsdp2-hf-sharded-w2", tmp_path)
    before = contents(path)
    assert thinned(path).checked is None
    assert contents(path) == before


def test_keys_that_only_the_optimizer_explains_are_refused(tmp_path: Path) -> None:
    path = copy_of("torch-2.13.0-fsdp2/one_rank", tmp_path)
    with pytest.raises(Unsupported, match=r"its keys are a flat list, and without the optimizer"):
        prepare_thinning(path, M)


def test_latest_is_told_of(tmp_path: Path) -> None:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", tmp_path)
    notes = prepare_thinning(path, M).notes
    assert any(str(path / "latest") in note for note in notes)
    record = read_thinned(thinned(path).plan.subject)
    assert record is not None
    assert record.keep == "masters"
    assert record.dropped == ("exp_avg", "exp_avg_sq", "step")
    text = (path / "global_step2" / ".zerotools-thinned.json").read_text()
    assert json.loads(text)["time"] == 1.8e9
