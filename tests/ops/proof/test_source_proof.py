"""--verify finds what is wrong with the source itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, GOLDEN, JOB, TORCH
from tests.layouts import Placement, store
from tests.ops.exports import noise
from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile
from zerotools.core.flat_ranges import chunk_locations
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import perform
from zerotools.ops.execution.workers import MIN_TILE_BYTES, MemoryBudget
from zerotools.ops.proof.source_proof import prove_source

BUDGET = MemoryBudget(max_memory=2 * 3 * MIN_TILE_BYTES, workers=2)


def flip(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 4]))


def verify(checkpoint: Checkpoint) -> None:
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
    verify(copies)


@pytest.mark.parametrize("at", [5, 5 + 200 * 400 * 4 - 1])
def test_copies_that_differ_are_refused_and_both_files_are_named(
    copies: Checkpoint, at: int
) -> None:
    flip(copies.root / "0/rank1", at)
    said = r"w is saved in 0/rank0 and in 0/rank1, and the copies differ in 1 of \d+ bytes"
    with pytest.raises(BadFile, match=said):
        verify(copies)


def test_the_copies_of_all_ranks_are_known() -> None:
    """verl's files: what every rank has whole is there as often."""
    checkpoint = formats.read(TORCH / "fsdp2-verl-w3" / "checkpoint")
    copied = [
        key
        for key, tensor in checkpoint.tensors.items()
        if sum(numel for _, numel in chunk_locations(tensor)) > tensor.numel
    ]
    assert copied
    verify(checkpoint)


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
    verify(checkpoint)
    flip(*first_byte(checkpoint))
    with pytest.raises(BadFile, match=r"has CRC-32 \w{8}, but the zip directory has \w{8}: its"):
        verify(formats.read(source))


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
    perform(
        consolidate.prepare(copy, tmp_path / "whole", Options()),
        budget=BUDGET,
        overwrite=False,
        verify=True,
    )
    file = damage(copy)
    conversion = consolidate.prepare(copy, tmp_path / "out", Options())
    with pytest.raises(BadFile, match=f"{file}.* has SHA-256 .*changed since it was saved; take"):
        perform(conversion, budget=BUDGET, overwrite=False, verify=True)
    assert not (tmp_path / "out").exists()


def test_what_no_output_needs_is_nobodys_concern(tmp_path: Path) -> None:
    copy = shutil.copytree(JOB, tmp_path / JOB.name)
    flip(copy / "rank_00001.json", 3)
    conversion = consolidate.prepare(copy, tmp_path / "out", Options())
    perform(conversion, budget=BUDGET, overwrite=False, verify=True)


GOLDENS = sorted(GOLDEN.glob("*/*/checkpoint"))[1::6]


@pytest.mark.parametrize("case", GOLDENS, ids=lambda path: path.parent.name)
def test_real_checkpoints_pass(case: Path) -> None:
    verify(formats.read(case))


def test_only_the_tensors_that_are_asked_for_are_read(copies: Checkpoint) -> None:
    flip(copies.root / "0/rank1", 5)
    prove_source(replace(copies), [], copies.stamps, BUDGET)
