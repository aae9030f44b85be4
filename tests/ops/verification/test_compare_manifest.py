"""A manifest verifies whatever is made of its checkpoint, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.golden_files import DEEPSPEED, TORCH
from tests.ops.verification.forms import made
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.verification.compare_manifest import Against, chosen_reference
from zerotools.ops.verification.digest_manifest import sidecar_of, write_digest_manifest
from zerotools.ops.verification.verification_result import Check, Soundness, Verification
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify

from .damage import SMALL, copy, flip, messages

ZERO3 = DEEPSPEED / "z3-bf16-w4" / "checkpoint"
ZERO2 = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
TAGS = DEEPSPEED / "z2-bf16-w2-tags" / "checkpoint"


def manifest_of(path: Path) -> Against:
    return chosen_reference(path, SMALL)


def compared(path: Path, other: Against) -> Verification:
    return carry_out_verify(prepare_verify(path), other=other, budget=SMALL)


def with_sidecar(path: Path) -> Path:
    given = prepare_verify(path)
    found = carry_out_verify(given, digests=True, budget=SMALL)
    assert found.manifest is not None
    file = sidecar_of(given.files)
    write_digest_manifest(found.manifest, file, given.files)
    return file


WAYS = ["reshard-3-3", "reshard-2-1", "dcp", "universal", "torch", "export-bf16", "export-fp16"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("source", [ZERO3, ZERO2], ids=["z3", "z2"])
def test_what_is_made_of_a_checkpoint_is_that_of_its_manifest(
    tmp_path: Path, source: Path, how: str
) -> None:
    if (source, how) == (ZERO2, "export-fp16"):
        source = DEEPSPEED / "z2-fp32-w2" / "checkpoint"
    out = made(source, tmp_path / "out", how)
    other = manifest_of(source)
    found = compared(out, other)
    assert messages(found) == ""
    assert found.comparison is not None
    assert found.comparison.tensors >= 5
    assert not found.comparison.by_files
    assert messages(compared(source, manifest_of(out))) == ""


def test_a_manifest_of_fewer_bits_does_not_make_a_file_whole(tmp_path: Path) -> None:
    narrow = made(ZERO3, tmp_path / "narrow", "export-bf16") / "model.safetensors"
    wide = made(ZERO3, tmp_path / "wide", "export-fp32") / "model.safetensors"
    assert compared(narrow, manifest_of(wide)).is_whole
    chunk = prepare_verify(wide).checkpoint.tensors[Key("embed.weight", "param")].chunks[0]
    flip(wide, chunk.offset, 1)  # the last bit of a float32
    found = compared(wide, manifest_of(narrow))
    assert (found.findings, found.verdict) == ((), Soundness.UNCHECKED)
    assert found.comparison is not None
    (note, *_) = found.comparison.notes
    assert "compared after a cast to bfloat16: the bits that the cast removes" in note


def test_float64_and_its_export_in_float32_are_compared(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=99)
    wide, narrow = tmp_path / "wide.safetensors", tmp_path / "narrow.safetensors"
    save_file({"w": values}, wide)
    for change, expected in ((0, Soundness.UNCHECKED), (1, Soundness.FAULTY)):
        save_file({"w": (values + change).astype(np.float32)}, narrow)
        assert compared(narrow, manifest_of(wide)).verdict is expected
        assert compared(wide, manifest_of(narrow)).verdict is expected


def test_the_index_of_an_export_needs_no_checksum_of_its_own(tmp_path: Path) -> None:
    options = consolidate.Options(dtype="fp32", max_shard_bytes=300)
    prepared = consolidate.prepare_export(ZERO3, tmp_path / "out", options)
    perform_conversion(prepared, budget=SMALL, overwrite=False)
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    assert compared(tmp_path / "out", manifest_of(ZERO3)).is_whole


def test_one_changed_value_is_found_whatever_the_format(tmp_path: Path) -> None:
    out = made(ZERO3, tmp_path / "out", "export-bf16")
    weight = prepare_verify(out).checkpoint.tensors["embed.weight", "param"]
    flip(out / weight.chunks[0].file, weight.chunks[0].offset)
    found = compared(out, manifest_of(ZERO3))
    (finding,) = found.findings
    assert finding.check is Check.MANIFEST
    assert "not the cast of the float32" in finding.message


def test_a_safetensors_file_is_whole_with_its_manifest(tmp_path: Path) -> None:
    path = copy(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint", tmp_path)
    assert carry_out_verify(prepare_verify(path), budget=SMALL).verdict is Soundness.UNCHECKED
    with_sidecar(path)
    found = carry_out_verify(prepare_verify(path), budget=SMALL)
    assert found.is_whole
    assert found.comparison is not None
    assert found.comparison.by_files
    file = next(path.glob("*00002*.safetensors"))
    flip(file, file.stat().st_size - 1)
    (finding,) = carry_out_verify(prepare_verify(path), budget=SMALL).findings
    assert finding.file == file.name
    assert "its bytes have changed; the changed tensors are " in finding.message


@pytest.mark.parametrize("case", ["z2-fp32-w2-legacy", "hf-trainer-z2-bf16-w2"])
def test_every_file_is_compared(tmp_path: Path, case: str) -> None:
    path = copy(DEEPSPEED / case / "checkpoint", tmp_path)
    with_sidecar(path if case.startswith("z2") else path / "checkpoint-2")
    given = prepare_verify(path)
    assert carry_out_verify(given, budget=SMALL).is_whole
    for name in sorted(given.files.names)[::3]:
        file = given.files.base / name
        kept = file.read_bytes()
        file.unlink()
        assert said(path), name
        file.write_bytes(kept + b"!")
        assert Path(name).name in said(path), name
        file.write_bytes(kept)
    assert said(path) == ""


def said(path: Path) -> str:
    try:
        return messages(carry_out_verify(prepare_verify(path), budget=SMALL))
    except (BadFile, BadRequest) as error:
        return str(error)


def test_a_manifest_of_another_step_is_said_in_one_sentence(tmp_path: Path) -> None:
    tags = copy(TAGS, tmp_path)
    other = manifest_of(tags / "global_step1")
    (finding,) = compared(tags / "global_step3", other).findings
    assert "is of step 1" in finding.message
    assert "is the manifest of another checkpoint" in finding.message


def test_another_checkpoint_in_the_same_place_is_found(tmp_path: Path) -> None:
    tags = copy(TAGS, tmp_path)
    with_sidecar(tags / "global_step1")
    shutil.rmtree(tags / "global_step1")
    shutil.copytree(tags / "global_step3", tags / "global_step1")
    found = carry_out_verify(prepare_verify(tags / "global_step1"), budget=SMALL)
    assert found.verdict is Soundness.FAULTY


def test_a_manifest_of_another_model_is_refused(tmp_path: Path) -> None:
    save_file({"other": np.ones(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(BadRequest, match="belongs to another model"):
        compared(ZERO3, manifest_of(tmp_path / "other.safetensors"))


def test_a_checkpoint_that_lost_every_tensor_is_damaged_and_not_another(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    other = manifest_of(path)
    next(path.rglob("bf16_zero_pp_rank_1_*")).unlink()
    found = compared(path, other)
    assert found.verdict is Soundness.FAULTY
    assert "another model" not in messages(found)


def test_names_that_match_in_part_are_listed_once(tmp_path: Path) -> None:
    out = made(ZERO3, tmp_path / "out", "export-bf16")
    file = out / "model.safetensors"
    tensors = load_file(file)
    other = manifest_of(file)
    first, second, *_ = sorted(tensors)
    values = tensors.pop(first)
    tensors["added"], tensors[second] = values, tensors[second].reshape(-1)
    save_file(tensors, file)
    found = messages(compared(file, other))
    assert f"{first} is in the manifest, but not in the checkpoint" in found
    assert "added is not in the manifest" in found
    assert f"{second} has the shape" in found


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("a", "a has other values"),
        ("ab", "a and b have other values"),
        ("abc", "a, b and c have other values"),
        ("abcde", "a, b, c and 2 more have other values"),
    ],
)
def test_what_differs_alike_is_one_sentence(names: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({name: np.ones(2, np.float32) for name in "abcdef"}, file)
    other = manifest_of(file)
    values = {name: np.full(2, 2 if name in names else 1, np.float32) for name in "abcdef"}
    save_file(values, file)
    assert f"{file}: {sentence} than in the manifest" in messages(compared(file, other))


def test_a_manifest_goes_into_a_regular_file_alone(tmp_path: Path) -> None:
    given = prepare_verify(copy(ZERO3, tmp_path))
    found = carry_out_verify(given, digests=True, budget=SMALL)
    os.mkfifo(tmp_path / "fifo")
    assert found.manifest is not None
    for place in (tmp_path / "fifo", Path("/dev/full"), tmp_path):
        with pytest.raises(BadRequest, match="is not a regular file; choose another file"):
            write_digest_manifest(found.manifest, place, given.files)


def test_a_damaged_manifest_beside_it_is_a_finding(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    file = with_sidecar(path)
    file.write_text(file.read_text().replace("float32", "float64", 1))
    assert "damaged or was changed by hand" in said(path)
    with pytest.raises(BadFile, match="damaged or was changed by hand"):
        chosen_reference(file, SMALL)
    with pytest.raises(BadRequest, match="cannot be read"):
        chosen_reference(tmp_path / "nothing.json", SMALL)
