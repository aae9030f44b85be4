"""What is found in a database is what TensorStore finds there; damage is named by file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import GOLDEN
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.orbax.ocdbt import _crc32c, find_values
from zerotools.io.files.open_files import OpenFiles

tensorstore = pytest.importorskip("tensorstore")

DATABASES = sorted(path.parent for path in GOLDEN.glob("orbax-*/**/manifest.ocdbt"))
CONFIGS: dict[str, dict[str, Any]] = {
    "deep": {"max_inline_value_bytes": 20, "max_decoded_node_bytes": 500},
    "plain": {"max_inline_value_bytes": 20, "compression": None},
    "inline": {"max_inline_value_bytes": 1024},
    "numbered": {"manifest_kind": "numbered"},
}


def database(path: Path, config: dict[str, Any], values: dict[str, bytes]) -> Path:
    path.mkdir()
    base = {"driver": "file", "path": f"{path}/"}
    spec = {"driver": "ocdbt", "base": base, "config": config}
    store = tensorstore.KvStore.open(spec).result()
    transaction = tensorstore.Transaction()
    for key, value in values.items():
        store.with_transaction(transaction)[key] = value
    transaction.commit_sync()
    return path


def found_in(path: Path, memory: int = 2**26) -> dict[str, bytes]:
    with OpenFiles(path, named_by="the OCDBT database") as files:
        values = find_values(files, path, memory)
        return {
            key: value if isinstance(value, bytes) else files.read_ranges([value])[0]
            for key, value in values.items()
        }


def sealed(data: bytes) -> bytes:
    """A manifest or a node with the length and the checksum of what it holds now."""
    body = data[:4] + struct.pack("<Q", len(data)) + data[12:-4]
    return body + struct.pack("<I", _crc32c(body))


@pytest.mark.parametrize("path", DATABASES, ids=lambda path: "-".join(path.parts[-5:]))
def test_golden_databases_have_what_tensorstore_finds(path: Path) -> None:
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
    store = tensorstore.KvStore.open(spec).result()
    wanted = {key.decode(): store[key] for key in store.list().result()}
    assert wanted
    assert found_in(path) == wanted


@pytest.mark.parametrize("config", CONFIGS.values(), ids=[*CONFIGS])
def test_every_form_of_a_database_is_read(tmp_path: Path, config: dict[str, Any]) -> None:
    values = {f"layers_{n}.kernel/{n % 7}.{n}": bytes([n % 256]) * (n % 60) for n in range(300)}
    assert found_in(database(tmp_path / "it", config, values)) == values


def test_the_newest_version_counts_and_an_empty_one_has_no_values(tmp_path: Path) -> None:
    path = database(tmp_path / "it", {}, {"a": b"1", "b": b"2"})
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
    store = tensorstore.KvStore.open(spec).result()
    store["a"] = b"3"
    assert found_in(path) == {"a": b"3", "b": b"2"}
    for key in (b"a", b"b"):
        del store[key]
    assert found_in(path) == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:10], "it does not begin like one"),
        (lambda data: data[:-3], r"it has \d+ bytes, but its header records \d+"),
        (lambda data: b"\0" + data[1:], "it does not begin like one"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its checksum is wrong"),
        (
            lambda data: sealed(data[:13] + b"\7" + data[14:]),
            "it is compressed in an unknown way",
        ),
        (lambda data: sealed(data[:14] + b"no zstd" + data[21:]), "it cannot be decompressed"),
    ],
)
def test_a_damaged_manifest_is_named(tmp_path: Path, change: Any, said: str) -> None:
    path = database(tmp_path / "it", {}, {"a": b"1"})
    manifest = path / "manifest.ocdbt"
    manifest.write_bytes(change(manifest.read_bytes()))
    with pytest.raises(BadFile, match=rf"manifest\.ocdbt is damaged: ({said}).*; copy or downl"):
        found_in(path)


def test_compressed_bytes_are_not_taken_as_they_are(tmp_path: Path) -> None:
    """The bytes differ from run to run, and so does what is found first."""
    path = database(tmp_path / "it", {}, {"a": b"1"})
    manifest = path / "manifest.ocdbt"
    data = manifest.read_bytes()
    manifest.write_bytes(sealed(data[:13] + b"\0" + data[14:]))
    with pytest.raises(BadFile, match=r"manifest\.ocdbt.*; copy or download it again"):
        found_in(path)


def test_a_newer_version_is_not_damage(tmp_path: Path) -> None:
    path = database(tmp_path / "it", {}, {"a": b"1"})
    data = bytearray((path / "manifest.ocdbt").read_bytes())
    data[12] = 3
    (path / "manifest.ocdbt").write_bytes(sealed(data))
    with pytest.raises(Unsupported, match=r"manifest\.ocdbt cannot be read: .* in version 3 of"):
        found_in(path)


def test_a_damaged_node_is_named_by_its_file_and_position(tmp_path: Path) -> None:
    path = database(tmp_path / "it", CONFIGS["deep"], {f"key/{n}": b"" for n in range(300)})
    node = max((path / "d").iterdir(), key=lambda each: each.stat().st_size)
    data = bytearray(node.read_bytes())
    data[40] ^= 1
    node.write_bytes(data)
    said = rf"d/{node.name} is damaged at byte 0, in a node of the database: its checksum is wrong"
    with pytest.raises(BadFile, match=said):
        found_in(path)


def test_a_node_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = database(tmp_path / "it", CONFIGS["deep"], {f"key/{n}": b"" for n in range(300)})
    for node in (path / "d").iterdir():
        node.write_bytes(node.read_bytes()[:9])
    with pytest.raises(BadFile, match=r"d/\w+ has 9 bytes, but the OCDBT database names"):
        found_in(path)


def test_an_index_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """One byte in the file for each key, and 1,000 bytes in memory: keys are stored as changes."""
    values = {"x" * 1000 + f"{n:04}": b"" for n in range(1000)}
    path = database(tmp_path / "it", {"max_decoded_node_bytes": 10**7}, values)
    assert sum(each.stat().st_size for each in path.rglob("*") if each.is_file()) < 20_000
    with pytest.raises(BadFile, match=r"its index would take more memory than in any real check"):
        found_in(path, memory=10**6)


@pytest.mark.parametrize("name", [b"../out/1234", b"/etc/passwd"])
def test_a_file_outside_the_directory_is_never_opened(tmp_path: Path, name: bytes) -> None:
    path = database(tmp_path / "it", {"compression": None}, {"a": b"1"})
    manifest = path / "manifest.ocdbt"
    (node,) = (path / "d").iterdir()
    own = b"d/" + node.name.encode()
    data = manifest.read_bytes()
    assert own in data
    manifest.write_bytes(sealed(data.replace(own, name.ljust(len(own), b"x"))))
    with pytest.raises(BadFile, match=r"it names the file '.*', which is not below the database"):
        found_in(path)


def test_a_node_at_another_height_is_refused(tmp_path: Path) -> None:
    """Else a node that names itself as its child would never end."""
    path = database(tmp_path / "it", {"compression": None}, {"a": b"1"})
    manifest = path / "manifest.ocdbt"
    data = bytearray(manifest.read_bytes())
    versions = bytes([2, 1, 2, 0, 0])  # of two versions, their numbers and the heights of the roots
    data[data.index(versions) + len(versions) - 1] = 5
    manifest.write_bytes(sealed(bytes(data)))
    with pytest.raises(BadFile, match="its height in the tree is not the one that its"):
        found_in(path)


def test_a_node_without_entries_is_refused(tmp_path: Path) -> None:
    path = database(tmp_path / "it", {"compression": None}, {"a": b"1"})
    (node,) = (path / "d").iterdir()
    data = bytearray(node.read_bytes())
    data[16] = 0  # behind version, compression, height and a table without files
    node.write_bytes(sealed(bytes(data)))
    with pytest.raises(BadFile, match="in a node of the database: it has no entries"):
        found_in(path)


def test_the_checksum_is_crc_32c() -> None:
    assert _crc32c(b"123456789") == 0xE3069283
