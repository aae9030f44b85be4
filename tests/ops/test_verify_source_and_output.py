"""--verify finds what is wrong with the source itself."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden_files import DEEPSPEED, GOLDEN, JOB, TORCH
from tests.layouts import Placement, load, store, target
from tests.ops.exports import model, noise
from tests.ops.verification.damage import SMALL, flip
from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.flat_ranges import chunk_locations
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.dtype_casts import numpy_cast
from zerotools.io.numeric.torch_float16_cast import torch_cast
from zerotools.io.output.manifest_path import sidecar_of_path
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.execute import (
    Publication,
    ReadBack,
    Transfer,
    WriteReport,
    execute,
)
from zerotools.ops.execution.plan_copies import plan
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget
from zerotools.ops.verification.digest_manifest import read_digest_manifest
from zerotools.ops.verification.verification_result import Soundness, Verification
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify
from zerotools.ops.verify_source_and_output import compare_bytes, prove_source

BUDGET = MemoryBudget(max_memory=2 * 3 * MIN_TILE_BYTES, workers=2)


def check_source(checkpoint: Checkpoint) -> None:
    prove_source(checkpoint, checkpoint.tensors, checkpoint.stamps, BUDGET)


def first_byte(checkpoint: Checkpoint) -> tuple[Path, int]:
    chunk = next(c for t in checkpoint.tensors.values() for c in t.chunks if not c.box.is_empty)
    return checkpoint.root / chunk.file, chunk.offset


@pytest.fixture
def copies(tmp_path: Path) -> Checkpoint:
    """A weight in two halves, of which the second is saved by two ranks, once transposed."""
    top, bottom = Box((0, 0), (300, 400)), Box((300, 0), (200, 400))
    placements = [
        Placement(top, "rank0", 3, (0, 1)),
        Placement(bottom, "rank0", 0, (0, 1)),
        Placement(bottom, "rank1", 5, (1, 0)),
    ]
    return store(tmp_path, {Key("w", "param"): (noise(500, 400), FLOAT32, placements)})


def test_equal_copies_pass(copies: Checkpoint) -> None:
    check_source(copies)


@pytest.mark.parametrize("at", [5, 5 + 200 * 400 * 4 - 1])
def test_copies_that_differ_are_refused_and_both_files_are_named(
    copies: Checkpoint, at: int
) -> None:
    flip(copies.root / "0/rank1", at)
    said = r"w is saved in 0/rank0 and in 0/rank1, and the copies differ in 1 of \d+ bytes"
    with pytest.raises(BadFile, match=said):
        check_source(copies)


def test_the_copies_of_all_ranks_are_known() -> None:
    """verl's files: what every rank has whole is there as often."""
    checkpoint = formats.read(TORCH / "fsdp2-verl-w3" / "checkpoint")
    copied = [
        key
        for key, tensor in checkpoint.tensors.items()
        if sum(numel for _, numel in chunk_locations(tensor)) > tensor.numel
    ]
    assert copied
    check_source(checkpoint)


CASES = [
    DEEPSPEED / "z2-bf16-w2" / "checkpoint",
    DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint",
    TORCH / "fsdp2-dcp-w3" / "checkpoint",
    TORCH / "fsdp2-verl-w3" / "checkpoint",
    TORCH / "training-file" / "checkpoint" / "checkpoint.pt",
]


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.parent.name)
def test_a_flipped_bit_of_a_weight_is_found_by_the_crc_of_its_record(
    tmp_path: Path, case: Path
) -> None:
    copy = shutil.copytree(case if case.is_dir() else case.parent, tmp_path / "in")
    source = copy if case.is_dir() else copy / case.name
    checkpoint = formats.read(source)
    check_source(checkpoint)
    flip(*first_byte(checkpoint))
    with pytest.raises(BadFile, match=r"has CRC-32 \w{8}, but the zip directory has \w{8}: its"):
        check_source(formats.read(source))


def damaged_data(copy: Path) -> str:
    file, offset = first_byte(formats.read(copy))
    flip(file, offset)
    return "dcp/__"


def damaged_config(copy: Path) -> str:
    flip(copy / "config.json", 3)
    return "config.json"


@pytest.mark.parametrize("damage", [damaged_data, damaged_config])
def test_a_jobs_checkpoint_has_the_digests_of_its_manifest(
    tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    copy = shutil.copytree(JOB, tmp_path / JOB.name)
    perform_conversion(
        consolidate.prepare_export(copy, tmp_path / "whole", Options()),
        budget=BUDGET,
        overwrite=False,
        verify=True,
    )
    file = damage(copy)
    conversion = consolidate.prepare_export(copy, tmp_path / "out", Options())
    with pytest.raises(BadFile, match=f"{file}.* has SHA-256 .*changed since it was saved; take"):
        perform_conversion(conversion, budget=BUDGET, overwrite=False, verify=True)
    assert not (tmp_path / "out").exists()


def test_what_no_output_needs_is_nobodys_concern(tmp_path: Path) -> None:
    copy = shutil.copytree(JOB, tmp_path / JOB.name)
    flip(copy / "rank_00001.json", 3)
    conversion = consolidate.prepare_export(copy, tmp_path / "out", Options())
    perform_conversion(conversion, budget=BUDGET, overwrite=False, verify=True)


GOLDENS = sorted(GOLDEN.glob("*/*/checkpoint"))[1::6]


@pytest.mark.parametrize("case", GOLDENS, ids=lambda path: path.parent.name)
def test_real_checkpoints_pass(case: Path) -> None:
    check_source(formats.read(case))


def test_only_the_tensors_that_are_asked_for_are_read(copies: Checkpoint) -> None:
    flip(copies.root / "0/rank1", 5)
    prove_source(replace(copies), [], copies.stamps, BUDGET)


def export(tmp_path: Path, **options: object) -> Conversion:
    source = model(tmp_path / "in", {"a": noise(300, 400), "b": noise(300, 400, seed=1)})
    return consolidate.prepare_export(source, tmp_path / "out", Options(**options))  # type: ignore[arg-type]


def damage_once_written(file: Path, offset: int) -> Callable[[int], None]:
    """Damage one byte of the file when everything of it was written."""
    left = [2 * 300 * 400 * 2]

    def on_bytes(count: int) -> None:
        left[0] -= count
        if left[0] == 0:
            with file.open("r+b") as opened:
                opened.seek(offset)
                value = opened.read(1)[0]
                opened.seek(offset)
                opened.write(bytes([value ^ 0x40]))

    return on_bytes


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_what_is_right_passes_and_is_counted(tmp_path: Path, form: str) -> None:
    report = perform_conversion(
        export(tmp_path, format=form), budget=BUDGET, overwrite=False, verify=True
    )
    assert report.bytes_verified == report.bytes_written == 2 * 300 * 400 * 2
    assert (tmp_path / "out").exists()


def test_a_flipped_bit_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    conversion = export(tmp_path)
    key = next(key for key in conversion.target.checkpoint.tensors if key.name == "b")
    (chunk,) = conversion.target.checkpoint.tensors[key].chunks
    at = chunk.offset + 100_001
    damage = damage_once_written(partial_of(tmp_path / "out") / chunk.file, at)
    with pytest.raises(
        BadFile, match=rf"out/model.safetensors differs from .*: byte {at}, in b, is 0x\w\w, but"
    ):
        perform_conversion(conversion, budget=BUDGET, overwrite=False, verify=True, on_bytes=damage)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_without_verify_it_is_not_noticed(tmp_path: Path) -> None:
    damage = damage_once_written(partial_of(tmp_path / "out") / "model.safetensors", 5000)
    perform_conversion(export(tmp_path), budget=BUDGET, overwrite=False, on_bytes=damage)
    assert (tmp_path / "out").exists()


def test_headers_are_read_back_too(tmp_path: Path) -> None:
    conversion = export(tmp_path)

    def swap_names(_: WriteReport) -> None:
        with (partial_of(tmp_path / "out") / "model.safetensors").open("r+b") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = file.read(length)
            file.seek(8)
            file.write(header.replace(b'"a"', b'"c"'))

    with pytest.raises(BadFile, match=r"was read back, but .* do not have the planned"):
        perform_conversion(
            conversion, budget=BUDGET, overwrite=False, verify=True, check=swap_names
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_reshard_is_verified(tmp_path: Path) -> None:
    conversion = reshard.prepare_reshard(JOB, tmp_path / "out", world_size=3)
    assert isinstance(conversion, Conversion)
    report = perform_conversion(conversion, budget=BUDGET, overwrite=False, verify=True)
    assert report.bytes_verified == conversion.bytes_of_tensors


@pytest.mark.torch
def test_either_kernel_writes_and_verifies_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    values, key = noise(300, 700) * 1e-5, Key("w", "param")
    halves = [Placement(Box((0, at), (300, 350)), f"{at}", 1, (0, 1)) for at in (0, 350)]
    source = store(tmp_path / "in", {key: (values, dtypes.FLOAT32, halves)})
    written = []
    for name, cast in (("numpy", numpy_cast), ("torch", torch_cast())):
        placed = [Placement(Box.whole(values.shape), "a", 3, (0, 1))]
        output = target(tmp_path / name, {key: (values.shape, dtypes.FLOAT16, placed)})

        def read_back(directory: Path, output=output, cast=cast) -> ReadBack:  # type: ignore[no-untyped-def]
            again = plan(source, output.checkpoint)
            found = compare_bytes(
                again, source.root, output, directory, BUDGET, lambda _: None, cast, Sources()
            )
            return ReadBack(found)

        copies = plan(source, output.checkpoint)
        report = execute(
            copies,
            source.root,
            output,
            transfer=Transfer(cast=cast),
            publication=Publication(read_back=read_back),
        )
        assert report.bytes_verified == 2 * values.size
        written.append(load(output.checkpoint, key).tobytes())
    assert written == [values.astype(np.float16).tobytes()] * 2


ZERO3 = DEEPSPEED / "z3-bf16-w4" / "checkpoint"
ZERO2 = DEEPSPEED / "z2-bf16-w2" / "checkpoint"


def prepared(source: Path, out: Path, how: str) -> Conversion:
    command, _, rest = how.partition(" ")
    done: Any
    if command == "consolidate":
        options = consolidate.Options(dtype="bf16", format=rest, max_shard_bytes=2**14)
        done = consolidate.prepare_export(source, out, options)
    elif command == "reshard":
        done = reshard.prepare_reshard(source, out, world_size=int(rest))
    else:
        done = convert.prepare_convert(source, out, rest, {})
    assert isinstance(done, Conversion)
    return done


def made(source: Path, out: Path, how: str, **options: Any) -> Path:
    options = {"overwrite": False, "verify": True, **options}
    perform_conversion(prepared(source, out, how), budget=SMALL, **options)
    return out


def messages(found: Verification) -> list[str]:
    return [finding.message for finding in found.findings]


def verified(path: Path) -> Verification:
    return carry_out_verify(prepare_verify(path), budget=SMALL)


COMMANDS = [
    (ZERO3, "consolidate safetensors"),
    (ZERO3, "consolidate torch"),
    (ZERO2, "reshard 3"),
    (JOB, "reshard 3"),
    (ZERO2, "convert dcp"),
    (ZERO2, "convert universal"),
    (JOB, "convert torch"),
]


@pytest.mark.parametrize(
    ("source", "how"), COMMANDS, ids=lambda value: str(value).split("/")[-2:][0]
)
def test_an_output_is_whole_by_its_record_wherever_it_is(
    tmp_path: Path, source: Path, how: str
) -> None:
    out = made(source, tmp_path / "out", how)
    manifest = read_digest_manifest(sidecar_of_path(out))
    found = carry_out_verify(prepare_verify(out), digests=True, budget=SMALL)
    assert (messages(found), found.verdict) == ([], Soundness.WHOLE)
    assert found.manifest == manifest
    assert found.comparison is not None
    assert found.comparison.by_files

    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(out, tmp_path / "elsewhere" / "other-name")
    alone = verified(moved)
    assert (alone.verdict, alone.comparison) == (Soundness.WHOLE, None)
    assert alone.as_written is not None
    assert alone.as_written.path == moved / MARKER
    shutil.move(sidecar_of_path(out), sidecar_of_path(moved))
    both = verified(moved)
    assert both.verdict is Soundness.WHOLE
    assert both.comparison is not None


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    source = model(tmp_path / "in", {"a": noise(30, 40), "b": noise(30, 40, seed=1)})
    return made(source, tmp_path / "out", "consolidate safetensors")


def test_a_flipped_bit_of_weights_is_found_with_and_without_the_sidecar(exported: Path) -> None:
    flip(exported / "model.safetensors", 3000)
    (by_record, by_manifest) = messages(verified(exported))
    assert "has the digest" in by_record
    assert "(zerotools consolidate wrote" in by_record
    assert "its bytes have changed; the changed tensors are" in by_manifest
    sidecar_of_path(exported).unlink()
    alone = verified(exported)
    assert (messages(alone), alone.unchecked) == ([by_record], {})
    with pytest.raises(BadFile, match=r"its bytes have changed; take another checkpoint, or leave"):
        made(exported, exported.parent / "again", "convert torch")
    assert not (exported.parent / "again").exists()


def test_the_sidecar_of_another_output_is_known_for_that(exported: Path, tmp_path: Path) -> None:
    source = model(tmp_path / "in2", {"a": noise(30, 40, seed=2), "b": noise(30, 40, seed=3)})
    other = made(source, tmp_path / "other", "consolidate safetensors")
    shutil.copy(sidecar_of_path(other), sidecar_of_path(exported))
    (said,) = messages(verified(exported))
    assert "out.zerotools.json is the manifest of another checkpoint" in said
    (exported / MARKER).unlink()
    (said,) = messages(verified(exported))
    assert "is the manifest of another checkpoint: all 2 tensors" in said


def test_without_verify_there_are_no_digests(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"out exists; choose another output"):
        made(tmp_path / "in", exported, "consolidate safetensors", verify=False)
    made(tmp_path / "in", exported, "consolidate safetensors", verify=False, overwrite=True)
    assert not sidecar_of_path(exported).exists()
    marker = json.loads((exported / MARKER).read_text())
    assert marker.keys() == {"schema", "command", "version", "files"}
    found = verified(exported)
    assert (found.verdict, found.as_written) == (Soundness.UNCHECKED, None)
    made(tmp_path / "in", exported, "consolidate safetensors", overwrite=True)
    assert verified(exported).verdict is Soundness.WHOLE


def test_a_manifest_that_lies_where_that_of_the_output_goes(exported: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "in", tmp_path / "other", "consolidate safetensors")
    shutil.rmtree(exported)
    sidecar_of_path(other).rename(sidecar_of_path(exported))
    for verifies in (True, False):
        with pytest.raises(BadRequest, match=r"out\.zerotools\.json exists, and would be used"):
            made(tmp_path / "in", exported, "consolidate safetensors", verify=verifies)
    sidecar_of_path(exported).write_text("[]")
    with pytest.raises(BadRequest, match=r"is not a manifest that zerotools reads, so --overwrite"):
        made(tmp_path / "in", exported, "consolidate safetensors", overwrite=True)
    assert not exported.exists()
    sidecar_of_path(exported).unlink()
    made(tmp_path / "in", exported, "consolidate safetensors")


@pytest.mark.parametrize("verify", [True, False])
def test_the_manifest_of_what_was_removed_refuses_nothing(
    exported: Path, tmp_path: Path, *, verify: bool
) -> None:
    shutil.rmtree(exported)
    source = model(tmp_path / "in2", {"a": noise(30, 40, seed=2)})
    made(source, exported, "consolidate safetensors", verify=verify)
    assert sidecar_of_path(exported).exists() == verify
    assert messages(verified(exported)) == []


def test_the_manifest_of_the_directory_of_a_file(exported: Path, tmp_path: Path) -> None:
    """Where one file has the tensors, `origin.path` is that file."""
    (exported / MARKER).unlink()
    flip(exported / "model.safetensors", 3000)
    with pytest.raises(BadFile, match=r"but .*out\.zerotools\.json has .*: its bytes have changed"):
        made(exported, tmp_path / "again", "convert torch")


def test_a_damaged_record_is_said_and_no_reason_not_to_overwrite(
    exported: Path, tmp_path: Path
) -> None:
    marker = exported / MARKER
    marker.write_text(marker.read_text().replace('"digest": "', '"digest": "0', 1))
    assert any("does not have the digest" in said for said in messages(verified(exported)))
    made(tmp_path / "in", exported, "consolidate safetensors", overwrite=True)


def test_what_is_added_later_is_nobodys_concern(exported: Path) -> None:
    (exported / "README.md").write_text("words")
    found = verified(exported)
    assert found.verdict is Soundness.WHOLE
