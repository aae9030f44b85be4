"""verify from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerotools
from tests.golden_files import DEEPSPEED
from tests.ops.verification.damage import copy

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def test_a_manifest_vouches_for_every_byte(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    before = zerotools.verify(path, write_manifest=True)
    assert (before.verdict, before.findings) == ("whole", ())
    assert before.manifest is not None
    assert before.manifest.is_file()
    told: list[zerotools.ProgressUpdate] = []
    after = zerotools.verify(path, progress=told.append)
    assert (after.verdict, after.is_whole, after.against) == ("whole", True, before.manifest)
    assert told[-1].total == after.bytes_to_read == after.bytes_read > 0
    named = zerotools.verify(path, write_manifest=tmp_path / "m.json")
    assert named.manifest == tmp_path / "m.json"
    assert zerotools.verify(ZERO3, against=str(tmp_path / "m.json")).findings == ()


def test_damage_is_faulty(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    next(path.rglob("*rank_1_*optim_states.pt")).unlink()
    found = zerotools.verify(path, write_manifest=True)
    assert (found.verdict, found.manifest) == ("faulty", None)
    assert any("is missing" in each.message for each in found.findings)
    assert found.to_json()["verdict"] == "faulty"


def test_a_dry_run_reads_nothing() -> None:
    planned = zerotools.verify(ZERO3, dry_run=True)
    assert (planned.verdict, planned.dry_run, planned.bytes_read) == (None, True, 0)
    assert planned.bytes_to_read > 0
    assert len(planned.files) == len(planned.to_json()["files"])
    half = zerotools.verify(ZERO3, dry_run=True, part="1/2")
    assert str(half.part) == "part 1 of 2"


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(zerotools.BadRequest, match="--fast reads no tensor data, but a manifest"):
        zerotools.verify(ZERO3, fast=True, write_manifest=True)
    with pytest.raises(zerotools.BadRequest, match="--fast reads no tensor data, so there are no"):
        zerotools.verify(ZERO3, fast=True, part=(1, 2))
    with pytest.raises(zerotools.BadRequest, match="a part reads only some of it"):
        zerotools.verify(ZERO3, write_manifest=True, part=(1, 2))
