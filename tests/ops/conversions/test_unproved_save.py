"""What an export says of files of which nothing tells whether they are of one save."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import zerotools
from tests.golden_files import DEEPSPEED, JOB, TORCH

SAID = "cannot check whether"


def _notes(source: Path, out: Path) -> list[str]:
    return [note for note in zerotools.consolidate(source, out, dry_run=True).notes if SAID in note]


@pytest.mark.parametrize("case", ["fsdp2-verl-w3", "fsdp2-dcp-w3", "fsdp2-hf-sharded-w2"])
def test_files_of_ranks_without_a_word_of_their_save(tmp_path: Path, case: str) -> None:
    source = tmp_path / "run"
    shutil.copytree(TORCH / case / "checkpoint", source)
    (note,) = _notes(source, tmp_path / "out")
    assert "are from one save: to record it, run zerotools verify --write-manifest" in note
    zerotools.verify(source, write_manifest=True)
    assert _notes(source, tmp_path / "out") == []


@pytest.mark.parametrize("source", [DEEPSPEED / "z2-fp32-w2" / "checkpoint", JOB])
def test_files_that_say_it_themselves_or_have_a_manifest(tmp_path: Path, source: Path) -> None:
    assert _notes(source, tmp_path / "out") == []
