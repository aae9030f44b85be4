from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.io.torchzip.archives import archive_bytes, opened, zip_bytes
from tests.matrices import examples
from zerotools.core import dtypes
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.tolerated_damage import tolerating_damage
from zerotools.io.torchzip.archive import Archive, recovered_records
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.zip_directory import payload_of, read_directory, read_entry

TENSOR = StoredTensor(Storage("0", dtypes.INT16, 3), dtypes.INT16, 1, (2,), (1,))


def test_a_tree_and_the_place_of_its_storage(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"?" * 17 + archive_bytes({"w": TENSOR}, [b"abcdef"]))
    with opened(path, 17, path.stat().st_size - 17) as window:
        archive = Archive.open(window)
        read = archive.tree()["w"]
        assert read == TENSOR
        at = archive.payload(read.storage)
    assert path.read_bytes()[at : at + 6] == b"abcdef"


@pytest.mark.parametrize(
    ("records", "error", "said"),
    [
        ({"a/x": b""}, BadFile, "without data.pkl"),
        ({"a/data.pkl": b"", "a/byteorder": b"big"}, Unsupported, "big-endian"),
        ({"a/data.pkl": b"", "a/byteorder": b"middle-out"}, Unsupported, "big-endian"),
    ],
)
def test_what_is_no_archive_of_torch(
    tmp_path: Path, records: dict[str, bytes], error: type[Exception], said: str
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(zip_bytes(records))
    with opened(path) as window, pytest.raises(error, match=said):
        Archive.open(window)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ({}, "no record of storage '0'"),
        ({"a/data/0": b"abcd"}, "has 4 bytes, but its pickle gives 6"),
    ],
)
def test_a_storage_that_is_missing_or_of_another_size(
    tmp_path: Path, records: dict[str, bytes], said: str
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(zip_bytes({"a/data.pkl": dumps(TENSOR), **records}))
    with opened(path) as window, pytest.raises(BadFile, match=said):
        Archive.open(window).payload(TENSOR.storage)


_TREE = {
    str(n): StoredTensor(Storage(str(i), dtypes.FLOAT32, n), dtypes.FLOAT32, 0, (n,), (1,))
    for i, n in enumerate((300, 20, 7))
}
_STORAGES = [bytes([n % 251]) * 4 * n for n in (300, 20, 7)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recovery")


@settings(max_examples=examples(40))
@given(storages=st.lists(st.binary(max_size=90), max_size=4), data=st.data())
def test_records_before_a_cut_are_found_as_the_directory_has_them(
    scratch: Path, storages: list[bytes], data: st.DataObject
) -> None:
    raw = archive_bytes("x", storages)
    path = scratch / "cut.pt"
    path.write_bytes(raw)
    with opened(path) as window:
        known = read_directory(window)
        ends = {name: payload_of(window, entry) + entry.length for name, entry in known.items()}
        assert recovered_records(window) == known
    cut = data.draw(st.integers(0, len(raw)))
    path.write_bytes(raw[:cut])
    with opened(path) as window:
        found = recovered_records(window)
        assert found == {name: known[name] for name in found}
        # A record is proved by the descriptor behind it.
        assert found.keys() == {name for name, end in ends.items() if end + 16 <= cut}


def test_descriptors_inside_the_bytes_are_not_taken_for_the_records_own(tmp_path: Path) -> None:
    inner = archive_bytes("x", [b"a" * 40])
    path = tmp_path / "outer.pt"
    path.write_bytes(archive_bytes("y", [inner + b"PK\x07\x08" + bytes(12), b"b" * 9])[:-40])
    with opened(path) as window:
        found = recovered_records(window)
        assert read_entry(window, found["data/0"]).startswith(inner)
        assert read_entry(window, found["data/1"]) == b"b" * 9


def test_archives_of_other_programs_say_the_size_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(zip_bytes({"a/data.pkl": b"one", "a/data/0": b"two"})[:-30])
    with opened(path) as window:
        assert [read_entry(window, entry) for entry in recovered_records(window).values()] == [
            b"one",
            b"two",
        ]


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(zip_bytes({"a/data/0": b"one", "b/data/0": b"two"}))
    with opened(path) as window, pytest.raises(BadFile, match="twice"):
        recovered_records(window)


def test_what_is_lost_of_a_torch_file_lies_behind_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    raw = archive_bytes(_TREE, _STORAGES)
    path.write_bytes(raw[: raw.index(_STORAGES[1]) + 5])
    with pytest.raises(BadFile, match="does not end in a zip directory"):
        TorchFile.open(tmp_path, "a.pt")
    with tolerating_damage() as damage:
        file = TorchFile.open(tmp_path, "a.pt")
        assert file.tree == _TREE
        assert file.first_byte(_TREE["300"]) == raw.index(_STORAGES[0])
        assert file.first_byte(_TREE["20"]) == file.first_byte(_TREE["7"]) == file.size
    assert "does not end in a zip directory" in damage.faults[path]


def test_a_small_record_that_is_damaged_is_lost_when_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    raw = bytearray(archive_bytes(_TREE, _STORAGES))
    raw[raw.index(_STORAGES[2])] ^= 1
    path.write_bytes(raw)
    with tolerating_damage() as damage:
        file = TorchFile.open(tmp_path, "a.pt")
        assert file.first_byte(_TREE["7"]) == file.size
    assert "CRC-32" in damage.faults[path]


def test_a_file_whose_pickle_is_lost_is_refused_for_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(archive_bytes(_TREE, _STORAGES)[:40])
    with tolerating_damage(), pytest.raises(BadFile, match="does not end in a zip directory"):
        TorchFile.open(tmp_path, "a.pt")
