"""Salvage reads what others refuse: what attacks it is lost, and nothing else is."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from tests.io.torchzip.archives import archive_bytes
from tests.ops.salvage.damaged import consolidated, is_equal, salvage
from tests.ops.verification.damage import copy
from zerotools.core.errors import BadFile

SOUND = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return copy(SOUND, tmp_path)


def rank_file(path: Path) -> Path:
    return next(path.rglob("*rank_1_*optim_states.pt"))


def check(path: Path, tmp_path: Path) -> str:
    """The file of rank 1 is lost, and all else is there; returns what is said of it."""
    found, weights = salvage(path, tmp_path / "left")
    wanted = consolidated(SOUND)
    assert 0 < len(weights) < len(wanted)
    assert all(is_equal(array, wanted[name]) for name, array in weights.items())
    (said,) = [p.message for p in found.examined.damage if "rank_1_" in str(p.file)]
    filled, again = salvage(path, tmp_path / "filled", SOUND)
    assert filled.is_complete
    assert again.keys() == wanted.keys()
    return said


def test_a_pipe_in_place_of_a_file_is_not_waited_for(path: Path, tmp_path: Path) -> None:
    rank_file(path).unlink()
    os.mkfifo(_named(path))
    assert "is a named pipe (FIFO)" in check(path, tmp_path)


def _named(path: Path) -> Path:
    return path / rank_file(SOUND).relative_to(SOUND)


def test_a_link_that_leads_to_itself(path: Path, tmp_path: Path) -> None:
    file = rank_file(path)
    file.unlink()
    file.symlink_to(file.name)
    assert "rank_1_" in check(path, tmp_path)


def test_a_header_that_claims_more_than_there_is(path: Path, tmp_path: Path) -> None:
    file = rank_file(path)
    data = bytearray(file.read_bytes()[:-200])  # the directory is lost
    struct.pack_into("<2H", data, 26, 0xFFFF, 0xFFFF)  # name and extra field of the first record
    file.write_bytes(data)
    assert "does not end in a zip directory" in check(path, tmp_path)


def test_a_pickle_that_calls_is_not_run(path: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    call = f"cos\nsystem\n(S'touch {ran}'\ntR.".encode()
    raw = archive_bytes({})
    file = rank_file(path)
    begin = raw.index(b"\x80\x02")
    file.write_bytes(raw[:begin] + call + raw[begin:])
    check(path, tmp_path)
    assert not ran.exists()


def test_descriptors_everywhere_take_no_longer(path: Path, tmp_path: Path) -> None:
    """Each looks like the end of a record, and none says the size before it."""
    file = rank_file(path)
    data = file.read_bytes()[:300]
    file.write_bytes(data + b"PK\x07\x08" * 500_000)
    assert "does not end in a zip directory" in check(path, tmp_path)


def test_a_manifest_that_is_damaged_is_not_believed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.zerotools.json").write_text('{"schema": "zerotools.manifest/1"}')
    rank_file(path).unlink()
    found, _ = salvage(path, tmp_path / "left")
    assert any("the manifest is not used" in note for note in found.examined.given.notes)


def test_a_tag_that_is_a_file_of_rubbish(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(BadFile, match="not a safetensors file"):
        salvage(tmp_path, tmp_path.with_name("out"))
