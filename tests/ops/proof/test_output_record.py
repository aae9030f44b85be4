"""What --verify records: an output that moves with its record is verified without its source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import DEEPSPEED, JOB
from tests.ops.exports import model, noise
from tests.ops.verification.damage import SMALL, flip
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.output.marker import MARKER
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, perform
from zerotools.ops.verification.findings import Soundness, Verification
from zerotools.ops.verification.manifests.digest_manifest import (
    read_digest_manifest,
    sidecar_of_path,
)
from zerotools.ops.verification.verify import prepare, verify

ZERO3 = DEEPSPEED / "z3-bf16-w4" / "checkpoint"
ZERO2 = DEEPSPEED / "z2-bf16-w2" / "checkpoint"


def prepared(source: Path, out: Path, how: str) -> Conversion:
    command, _, rest = how.partition(" ")
    done: Any
    if command == "consolidate":
        options = consolidate.Options(dtype="bf16", format=rest, max_shard_bytes=2**14)
        done = consolidate.prepare(source, out, options)
    elif command == "reshard":
        done = reshard.prepare(source, out, world_size=int(rest))
    else:
        done = convert.prepare(source, out, rest, {})
    assert isinstance(done, Conversion)
    return done


def made(source: Path, out: Path, how: str, **options: Any) -> Path:
    options = {"overwrite": False, "verify": True, **options}
    perform(prepared(source, out, how), budget=SMALL, **options)
    return out


def messages(found: Verification) -> list[str]:
    return [finding.message for finding in found.findings]


def verified(path: Path) -> Verification:
    return verify(prepare(path), budget=SMALL)


CASES = [
    (ZERO3, "consolidate safetensors"),
    (ZERO3, "consolidate torch"),
    (ZERO2, "reshard 3"),
    (JOB, "reshard 3"),
    (ZERO2, "convert dcp"),
    (ZERO2, "convert universal"),
    (JOB, "convert torch"),
]


@pytest.mark.parametrize(("source", "how"), CASES, ids=lambda value: str(value).split("/")[-2:][0])
def test_an_output_is_whole_by_its_record_wherever_it_is(
    tmp_path: Path, source: Path, how: str
) -> None:
    out = made(source, tmp_path / "out", how)
    manifest = read_digest_manifest(sidecar_of_path(out))
    found = verify(prepare(out), digests=True, budget=SMALL)
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
    assert "its bytes have changed; changed are" in by_manifest
    sidecar_of_path(exported).unlink()
    assert messages(verified(exported)) == [by_record]
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
