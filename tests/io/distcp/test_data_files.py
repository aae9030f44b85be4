"""Files of another save in the place of a rank's."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tests.formats.copying import write
from tests.formats.dcp.test_golden import RANKS
from tests.golden_files import TORCH
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.formats.dcp.reading.read import read as read_dcp
from zerotools.formats.dcp.writing.lay_out import lay_out as lay_out_dcp
from zerotools.io.distcp.metadata import read_metadata
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import prove

SEVEN = struct.pack("<f", 7)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RANKS[3], tmp_path / "ckpt"))


def _steps(path: Path) -> dict[str, list[tuple[Key, Tensor]]]:
    found: dict[str, list[tuple[Key, Tensor]]] = {}
    for key, tensor in read_dcp(path).tensors.items():
        if key.role == "step":
            found.setdefault(tensor.chunks[0].file, []).append((key, tensor))
    return found


def _overwrite(path: Path, tensor: Tensor, data: bytes) -> None:
    chunk = tensor.chunks[0]
    with (path / chunk.file).open("r+b") as file:
        file.seek(chunk.offset)
        file.write(data)


def test_a_file_that_is_longer_than_the_metadata_says(copied: Path) -> None:
    with (copied / "__1_0.distcp").open("ab") as file:
        file.write(bytes(64))
    (problem,) = read_dcp(copied).problems
    assert problem.file == "__1_0.distcp"
    assert "41774 bytes" in problem.message
    assert "ends at 41710: it is from another save" in problem.message


@pytest.fixture
def spread(tmp_path: Path) -> Path:
    """Steps in the files of three ranks."""
    return Path(shutil.copytree(TORCH / "fsdp2-dcp-w3" / "checkpoint", tmp_path / "spread"))


def test_one_ranks_file_of_another_step_is_named_and_nothing_is_made_of_it(
    spread: Path, tmp_path: Path
) -> None:
    assert not read_dcp(spread).problems
    by_file = _steps(spread)
    for _, tensor in by_file["optimizer_0/__2_0.distcp"]:
        _overwrite(spread, tensor, SEVEN)
    (problem,) = read_dcp(spread).problems
    assert problem.file == "optimizer_0/__2_0.distcp"
    assert "from step 7 and other files are from step" in problem.message
    conversion = consolidate.prepare(spread, tmp_path / "out", consolidate.Options())
    with pytest.raises(BadFile, match="two saves are mixed"):
        prove(conversion)


def test_parameters_that_were_trained_later_are_no_mixture(spread: Path) -> None:
    for steps in _steps(spread).values():
        _overwrite(spread, steps[0][1], SEVEN)
    assert not read_dcp(spread).problems


def test_what_is_resharded_is_as_long_as_its_metadata_says(tmp_path: Path) -> None:
    source = read_dcp(RANKS[3])
    written = write(source, lay_out_dcp(source, tmp_path / "out", world_size=2))
    assert not read_dcp(written).problems
    assert read_metadata(written / ".metadata").items
