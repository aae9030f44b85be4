from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.golden_files import DEEPSPEED, GOLDEN, JOB, TORCH
from tests.layouts import Placement, store
from tests.ops.exports import noise
from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Key, Origin
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats import FORMATS
from zerotools.io.files.source_stamps import Sources
from zerotools.ops.verification.checkpoint_files import CheckpointFiles, archives_in
from zerotools.ops.verification.verification_result import Check, Soundness
from zerotools.ops.verification.verify import (
    OF_ANY_SAVE,
    ToVerify,
    carry_out_verify,
    prepare_verify,
)

from .damage import SMALL, copy, flip, largest_record, messages, verified

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"
DCP = TORCH / "fsdp2-torchtitan-w2" / "checkpoint"
WHOLE = [
    ZERO3,
    DEEPSPEED / "bf16-optimizer-w2" / "checkpoint",
    DEEPSPEED / "pipeline-z1-fp32-w4" / "checkpoint",
    DEEPSPEED / "tensor-parallel-z1-bf16-w4" / "checkpoint",
    TORCH / "training-file" / "checkpoint" / "checkpoint.pt",
    JOB,
]
UNCHECKED = {
    "legacy": (DEEPSPEED / "z2-fp32-w2-legacy" / "checkpoint", "mp_rank_00_model_states.pt"),
    "safetensors": (TORCH / "fsdp2-hf-sharded-w2" / "checkpoint", ".safetensors"),
    "dcp": (DCP, ".metadata"),
}


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.parent.name)
def test_a_checkpoint_with_checksums_is_whole(path: Path) -> None:
    found = verified(path)
    assert messages(found) == ""
    assert found.verdict is Soundness.WHOLE
    assert found.is_whole
    assert found.bytes_read == sum(found.files.names.values()) > 0


@pytest.mark.parametrize("case", sorted(UNCHECKED))
def test_what_has_no_checksums_is_never_called_whole(case: str) -> None:
    path, name = UNCHECKED[case]
    found = verified(path)
    assert found.verdict is Soundness.UNCHECKED
    assert not found.is_whole
    assert any(file.endswith(name) for file in found.unchecked)
    assert "no checksums" in found.unchecked.values()


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("universal-z2-bf16-w3", {"fp32.pt", "mp_rank_00_model_states.pt"}),
        ("z3-fp32-w2-momentum", {"zero_pp_rank_1_mp_rank_00_optim_states.pt"}),
        ("accelerate-z2-fp32-w2", {"random_states_0.pkl", "scheduler.bin"}),
        ("z3-bf16-w2-export16", {"pytorch_model.bin"}),
    ],
)
def test_files_that_do_not_say_their_step_are_not_called_whole(case: str, names: set[str]) -> None:
    found = verified(DEEPSPEED / case / "checkpoint")
    assert found.verdict is Soundness.UNCHECKED
    assert set(found.unchecked.values()) == {OF_ANY_SAVE}
    assert names <= {Path(name).name for name in found.unchecked}


def test_the_optimizer_beside_the_weights_may_be_of_another_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TORCH / "fsdp1-sharded-bin-w2" / "checkpoint"
    shutil.copy(TORCH / "state-dicts" / "checkpoint" / "pytorch_model.bin", tmp_path)
    assert verified(tmp_path).is_whole
    for name in ("README.md", "LICENSE", ".gitattributes", "loss.png"):
        (tmp_path / name).write_text("x")
    assert verified(tmp_path).is_whole
    shutil.copy(source / "optimizer_rank0.bin", tmp_path / "optimizer.bin")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, Path(), Path("..") / tmp_path.name):
        assert set(verified(path).files.names) >= {"pytorch_model.bin", "optimizer.bin"}
        assert not verified(path).is_whole


def test_the_structure_alone_is_never_called_whole(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    file = next(path.rglob("*optim_states.pt"))
    flip(file, file.stat().st_size // 2)
    found = verified(path, fast=True)
    assert (found.verdict, found.bytes_read) == (Soundness.UNCHECKED, 0)
    assert verified(path).verdict is Soundness.FAULTY


def test_a_flipped_bit_is_found_with_the_tensor_that_it_is_in(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    checkpoint = formats.read(path)
    key = next(key for key in checkpoint.tensors if key.role == "exp_avg")
    chunk = next(c for c in checkpoint.tensors[key].chunks if not c.box.is_empty)
    flip(checkpoint.root / chunk.file, chunk.offset)
    (finding,) = verified(path).findings
    assert finding.check is Check.BYTES
    assert finding.file == f"{checkpoint.root.name}/{chunk.file}"
    assert "record" in finding.message
    assert "CRC-32" in finding.message
    assert str(key) in finding.message


def test_a_flipped_bit_of_the_state_beside_the_tensors_is_found(tmp_path: Path) -> None:
    path = copy(DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint", tmp_path)
    file = next(path.rglob("rng_state_0.pth"))
    flip(file, largest_record(file))
    found = verified(path)
    assert [(f.check, Path(f.file or "").name) for f in found.findings] == [
        (Check.BYTES, "rng_state_0.pth")
    ]
    flip(file, 0)
    assert "does not begin like one" in messages(verified(path))


def test_every_item_of_a_dcp_is_checked(tmp_path: Path) -> None:
    path = copy(DCP, tmp_path)
    checkpoint = formats.read(path)
    archives = archives_in(checkpoint)
    items = [(file, *item) for file, found in archives.items() for item in found.items()]
    assert len(items) > 20
    for file, offset, length in items[::5]:
        at = largest_record(checkpoint.root / file, offset, length)
        flip(checkpoint.root / file, at)
        assert "CRC-32" in said_of(path), (file, offset)
        flip(checkpoint.root / file, at)
    assert said_of(path) == ""


def said_of(path: Path) -> str:
    """What is found, also where the damage keeps the metadata from being read."""
    try:
        return messages(verified(path))
    except BadFile as error:
        return str(error)


def test_a_job_is_checked_by_its_manifest(tmp_path: Path) -> None:
    path = copy(JOB, tmp_path)
    text = (path / "rank_00000.json").read_text()
    (path / "rank_00000.json").write_text(text.replace("1", "2", 1))
    (finding,) = verified(path).findings
    assert (finding.check, finding.file) == (Check.BYTES, "rank_00000.json")
    assert "SHA-256" in finding.message


def test_a_lost_rank_is_found_without_reading_data(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    next(path.rglob("bf16_zero_pp_rank_1_*")).unlink()
    found = verified(path, fast=True)
    assert found.verdict is Soundness.FAULTY
    assert "is missing" in messages(found)


def test_files_of_another_step_are_found(tmp_path: Path) -> None:
    """Every file is sound by itself."""
    tags = copy(DEEPSPEED / "z2-bf16-w2-tags" / "checkpoint", tmp_path)
    name = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(tags / "global_step1" / name, tags / "global_step3" / name)
    found = verified(tags / "global_step3", fast=True)
    assert "is from another save" in messages(found)


def test_leftovers_are_named() -> None:
    found = verified(DEEPSPEED / "z3-bf16-w2-leftovers" / "checkpoint")
    assert found.verdict is Soundness.FAULTY
    assert "to a run of more than 2 ranks" in messages(found)


@pytest.mark.parametrize("text", ["global_step9", "", "../elsewhere", "\xff", "x" * 300])
def test_a_latest_that_names_nothing_is_found(tmp_path: Path, text: str) -> None:
    path = copy(ZERO3, tmp_path)
    (path / "latest").write_bytes(text.encode("latin-1"))
    found = verified(path / "global_step2", fast=True)
    assert str(path / "latest") in messages(found)
    assert found.verdict is Soundness.FAULTY


def test_other_tags_are_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    tags = copy(DEEPSPEED / "z2-bf16-w2-tags" / "checkpoint", tmp_path)
    file = next((tags / "global_step1").glob("*optim_states.pt"))
    file.write_bytes(file.read_bytes()[:-100])
    assert verified(tags).is_whole
    assert verified(tags / "global_step1").verdict is Soundness.FAULTY


def test_a_file_that_changes_meanwhile_is_said(tmp_path: Path) -> None:
    path = copy(DEEPSPEED / "hf-trainer-z3-bf16-w2" / "checkpoint", tmp_path)
    given = prepare_verify(path)
    file = next(path.rglob("trainer_state.json"))
    file.write_text(file.read_text() + " ")
    (finding,) = carry_out_verify(given, fast=True).findings
    assert finding.check is Check.CHANGED
    assert "changed while it was verified" in finding.message
    assert "bytes and has" in finding.message


def stored(tmp_path: Path, role: str, values: np.ndarray, *, twice: bool = False) -> ToVerify:
    """A checkpoint of one tensor, with a second copy of its last rows where it is asked for."""
    top, rest = Box((0, 0), (300, 400)), Box((300, 0), (200, 400))
    placements = [Placement(top, "a.bin", 3, (0, 1)), Placement(rest, "a.bin", 0, (0, 1))]
    if twice:
        placements.append(Placement(rest, "b.bin", 5, (1, 0)))
    checkpoint = store(tmp_path, {Key("w", role): (values, FLOAT32, placements)})
    checkpoint = replace(checkpoint, origin=Origin("dcp", tmp_path))
    files = CheckpointFiles(tmp_path, tmp_path, dict(checkpoint.files), frozenset())
    return ToVerify(checkpoint, files, Sources(), FORMATS)


def test_copies_that_differ_are_found(tmp_path: Path) -> None:
    given = stored(tmp_path, "param", noise(500, 400), twice=True)
    assert not _of_copies(given)
    chunk = list(given.checkpoint.tensors["w", "param"].chunks)[2]
    flip(tmp_path / chunk.file, chunk.offset + 20)
    (message,) = _of_copies(given)
    assert "is saved in 0/a.bin and in 0/b.bin" in message


def _of_copies(given: ToVerify) -> list[str]:
    found = carry_out_verify(given, budget=SMALL).findings
    return [finding.message for finding in found if "copies" in finding.message]


def test_values_that_cannot_be_are_counted(tmp_path: Path) -> None:
    values = noise(500, 400)
    values[0, :3], values[499, 399] = np.nan, -np.inf
    found = carry_out_verify(stored(tmp_path / "a", "param", values), budget=SMALL)
    assert "w holds 3 NaN and 1 infinite values" in messages(found)

    squares = np.abs(noise(500, 400))
    squares[3, 4], squares[5, 6] = -1e-8, -0.0
    found = carry_out_verify(stored(tmp_path / "b", "exp_avg_sq", squares), budget=SMALL)
    assert "w (exp_avg_sq) holds 1 values below zero" in messages(found)

    found = carry_out_verify(stored(tmp_path / "c", "buffer", values), budget=SMALL)
    assert found.nonfinite[Key("w", "buffer")].nans == 3
    assert [f for f in found.findings if f.check is Check.MEANING] == []


def test_nothing_of_other_checkpoints_is_read() -> None:
    names = prepare_verify(GOLDEN / "deepspeed-0.19.8/z3-bf16-w2/checkpoint").files.names
    assert all(name.startswith("global_step2/") for name in names)


DELETED = (
    DEEPSPEED / "pipeline-z0-bf16-w2" / "checkpoint",
    DEEPSPEED / "pipeline-z1-fp32-w4" / "checkpoint",
    DEEPSPEED / "universal-z1-fp32-w2" / "checkpoint",
    DEEPSPEED / "accelerate-z2-fp32-w2" / "checkpoint",
    DEEPSPEED / "experts-z2-bf16-w2" / "checkpoint",
    DEEPSPEED / "tensor-parallel-z2-fp32-w2" / "checkpoint",
    TORCH / "fsdp2-verl-w3" / "checkpoint",
)
# What a run need not have: `latest`, which a note misses, and what a program may save or not.
NOT_MISSED = {"latest", "latest_universal", "scheduler.bin", "fsdp_config.json"}
NOT_MISSED |= {"layer_04-model_states.pt"}  # see below


@pytest.mark.parametrize("case", DELETED, ids=lambda path: path.parent.name)
def test_no_file_is_deleted_in_silence(case: Path, tmp_path: Path) -> None:
    shutil.copytree(case, tmp_path / "c")
    aside = tmp_path / "aside"
    for path in sorted(path for path in (tmp_path / "c").rglob("*") if path.is_file()):
        if path.suffix == ".py" or path.name in NOT_MISSED:
            continue
        path.rename(aside)
        try:
            found = verified(tmp_path / "c", fast=True)
        except (BadFile, BadRequest):
            continue
        finally:
            aside.rename(path)
        assert found.findings, path
        assert found.verdict is Soundness.FAULTY


def test_a_tied_layer_of_a_later_stage_may_be_lost(tmp_path: Path) -> None:
    """Or it never was: then the stage uses the layer of the first."""
    (path,) = copy(DEEPSPEED / "pipeline-z1-fp32-w4" / "checkpoint", tmp_path).glob("*/layer_04*")
    path.unlink()
    found = verified(path.parent)
    assert found.verdict is Soundness.UNCHECKED
    assert "lists tied_modules.embed.weight as trained, but no layer" in "".join(
        found.unchecked.values()
    )
