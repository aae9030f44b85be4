"""Files of another save in the place of a rank's, and bytes that are of no value."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.formats.copying import write
from tests.formats.dcp.test_golden import RANKS
from tests.golden_files import GOLDEN, TORCH
from tests.io.stores.far import put_directory, served
from zerotools import formats
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.formats.dcp.lay_out_resharded import lay_out as lay_out_dcp
from zerotools.formats.dcp.read import read as read_dcp
from zerotools.io.distcp.metadata import Item, read_metadata
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import prove_coverage
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify

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


@pytest.mark.parametrize("is_archive", [True, False])
def test_bytes_behind_the_last_value_are_a_note(
    copied: Path, tmp_path: Path, is_archive: bool
) -> None:
    """As where two ranks say of one tensor that they are its first copy."""
    file = copied / "__1_0.distcp"
    _, item = max(read_metadata(copied / ".metadata").items, key=_end_in(file.name))
    written = file.read_bytes()
    more = written[item.offset :] if is_archive else bytes(64)
    file.write_bytes(written + more)
    read = read_dcp(copied)
    assert not read.problems
    (note,) = (note for note in read.origin.notes if "after the last value" in note)
    assert f"__1_0.distcp there are {len(more)} bytes that the metadata does not list" in note
    assert not carry_out_verify(prepare_verify(copied)).findings
    conversion = consolidate.prepare_export(copied, tmp_path / "out", consolidate.Options())
    prove_coverage(conversion)
    before = read_dcp(RANKS[3])
    types = {key: tensor.dtype for key, tensor in before.tensors.items()}
    assert _bytes(load_tensors(read, types)) == _bytes(load_tensors(before, types))


def _bytes(arrays: Mapping[Key, np.ndarray]) -> dict[Key, bytes]:
    return {key: array.tobytes() for key, array in arrays.items()}


def _end_in(name: str) -> Callable[[tuple[str, Item]], int]:
    return lambda each: each[1].offset + each[1].length if each[1].file == name else -1


def test_of_several_files_with_bytes_behind_one_is_named(copied: Path) -> None:
    for name in ("__0_0.distcp", "__1_0.distcp"):
        with (copied / name).open("ab") as file:
            file.write(bytes(8))
    (note,) = (note for note in read_dcp(copied).origin.notes if "after the last value" in note)
    assert "and 1 other file there are 16 bytes" in note


def test_in_a_store_bytes_behind_the_last_value_are_a_note_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served(monkeypatch) as store:
        run = put_directory(store, GOLDEN / "mcore-bridge-1.6.5/glm4/checkpoint", "run")
        read = formats.read(run)
        assert not read.problems
        assert any("after the last value of __0_1.distcp" in note for note in read.origin.notes)


def test_a_longer_file_with_values_at_other_places_is_of_another_save(copied: Path) -> None:
    file = copied / "__1_0.distcp"
    written = file.read_bytes()
    file.write_bytes(written[:64] + written)
    (problem,) = read_dcp(copied).problems
    assert problem.file == "__1_0.distcp"
    assert (
        f"{len(written) + 64} bytes, but its last value ends at byte {len(written)}"
        in problem.message
    )
    assert "lists there: the file and the metadata are from different saves" in problem.message


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
    with pytest.raises(BadFile, match="two saves are mixed"):
        prove_coverage(consolidate.prepare_export(spread, tmp_path / "out", consolidate.Options()))


def test_parameters_that_were_trained_later_are_no_mixture(spread: Path) -> None:
    for steps in _steps(spread).values():
        _overwrite(spread, steps[0][1], SEVEN)
    assert not read_dcp(spread).problems


def test_what_is_resharded_is_as_long_as_its_metadata_says(tmp_path: Path) -> None:
    source = read_dcp(RANKS[3])
    written = write(source, lay_out_dcp(source, tmp_path / "out", world_size=2))
    assert not read_dcp(written).problems
    assert read_metadata(written / ".metadata").items
