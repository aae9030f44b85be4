"""The file of a delta is checked as a whole; what is no delta is refused in one sentence."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from zerotools.core.dtypes import BFLOAT16, UINT8
from zerotools.core.errors import BadFile, Unsupported
from zerotools.ops.delta.block_codec import Compression, DeltaBlockKind, EncodedBlock
from zerotools.ops.delta.delta_file import (
    DeltaFile,
    DeltaHeader,
    DeltaPlainFile,
    DeltaTensor,
    DeltaWriter,
    digest_of,
    parse_header,
)

PATH = Path("some.delta")
ZSTD = Compression()
TENSOR = DeltaTensor("w", "param", BFLOAT16, (2, 3), "model.safetensors", 8)
HEADER = DeltaHeader(
    (
        DeltaPlainFile("model.safetensors", 20, ((0, 8),)),
        DeltaPlainFile("tokenizer.json", 5, (), "ab"),
    ),
    (TENSOR,),
    "/a",
    "/b",
)


def written(header: DeltaHeader = HEADER, blocks: int = 1) -> bytes:
    stream = io.BytesIO()
    writer = DeltaWriter(stream, header, ZSTD.pack(b"HEADER.."))
    for _ in range(blocks):
        writer.block(EncodedBlock(DeltaBlockKind.SAME, 0, b"", b""), bytes(16), digest_of(b""))
    writer.end()
    assert writer.nbytes == len(stream.getvalue())
    return stream.getvalue()


def read(data: bytes) -> DeltaFile:
    return DeltaFile(PATH, io.BytesIO(data))


def test_what_is_written_is_read() -> None:
    found = read(written())
    assert found.header == HEADER
    assert ZSTD.unpack(found.plain, 8) == b"HEADER.."
    stored = found.block("w", 0)
    assert stored == (EncodedBlock(DeltaBlockKind.SAME, 0, b"", b""), bytes(16), digest_of(b""))


def test_every_cut_and_every_flipped_byte_is_found() -> None:
    whole = written()
    for length in range(len(whole)):
        with pytest.raises(BadFile):
            read(whole[:length])
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        with pytest.raises((BadFile, Unsupported)):
            read(bytes(flipped))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "some.delta is empty, so it is not a delta; zerotools delta A B OUT"),
        (b"{}" * 100, "is not a delta"),
        (written()[:-1], "is truncated: its end is missing"),
        (written(blocks=2), "blocks that belong to no tensor"),
        (written(blocks=0), "beyond its end"),
    ],
)
def test_what_is_no_delta_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadFile, match=why):
        read(data)


def changed(change: Callable[[Any], object]) -> bytes:
    tree = json.loads(HEADER.to_bytes())
    change(tree)
    return json.dumps(tree).encode()


def test_another_version_is_refused_by_its_name() -> None:
    def later(tree: Any) -> None:
        tree.update(version=2, made_by="zerotools 9.9")

    with pytest.raises(Unsupported, match=r"version 2, .* reads version 1; use zerotools 9\.9"):
        parse_header(changed(later), PATH)
    with pytest.raises(Unsupported, match=r"blocks of 5 elements, .* reads blocks of 1048576; use"):
        parse_header(changed(lambda tree: tree.update(block_elements=5)), PATH)


def test_texts_of_the_header_take_one_line_of_a_message() -> None:
    def long(tree: Any) -> None:
        tree.update(version=2, made_by="mine\nerror: another", a="/a" * 5000)

    with pytest.raises(Unsupported) as found:
        parse_header(changed(long), PATH)
    assert str(found.value).endswith("use mine error: another, which wrote it")
    header = parse_header(changed(lambda tree: tree.update(a="/a" * 5000, b="\n")), PATH)
    assert (len(header.a), header.b) == (303, " ")


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.pop("tensors"),
        lambda tree: tree.update(files=3),
        lambda tree: tree["files"][0].update(size=-1),
        lambda tree: tree["files"][0].update(size=21),
        lambda tree: tree["files"][0].update(parts=[[0, 9]]),
        lambda tree: tree["files"][0].update(parts=[]),
        lambda tree: tree["files"][0].update(name="../model.safetensors"),
        lambda tree: tree["files"][0].update(name="/etc/passwd"),
        lambda tree: tree["files"].append(tree["files"][0]),
        lambda tree: tree["tensors"][0].update(file="tokenizer.json"),
        lambda tree: tree["tensors"][0].update(file="elsewhere"),
        lambda tree: tree["tensors"][0].update(offset=9),
        lambda tree: tree["tensors"][0].update(shape=[2, 4]),
        lambda tree: tree["tensors"][0].update(shape=[True, 6]),
        lambda tree: tree["tensors"][0].update(shape=[2**62, 2**62]),
        lambda tree: tree["tensors"][0].update(shape=[2**62] * 400),
        lambda tree: tree["files"][1].update(name="\ud800"),
        lambda tree: tree["files"][1].update(name="n" * 300),
        lambda tree: tree["files"][1].update(name="model.safetensors/x"),
        lambda tree: tree["files"][1].update(same_digest={}),
        lambda tree: tree["files"][1].update(same_digest=None, size=1 << 40, parts=[[0, 1 << 40]]),
        lambda tree: tree["tensors"][0].update(dtype="complex128"),
        lambda tree: tree["tensors"][0].update(name=["w"]),
        lambda tree: tree["tensors"].append(tree["tensors"][0]),
    ],
)
def test_a_header_that_describes_no_model_is_refused(change: Callable[[Any], object]) -> None:
    with pytest.raises(BadFile, match=r"some\.delta"):
        parse_header(changed(change), PATH)


def test_a_header_that_is_no_json_is_refused() -> None:
    for data in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(BadFile, match="its header is damaged"):
            parse_header(data, PATH)


def resealed(data: bytes) -> bytes:
    """The data with a digest that fits: what no accident makes."""
    return data[:-16] + xxhash.xxh3_128_digest(data[:-16])


def test_lengths_beyond_the_end_are_refused() -> None:
    whole = written()
    for place in (8, whole.index(b"HEADER..") - 20, len(whole) - 32 - 48 + 8):
        bad = bytearray(whole)
        bad[place + 3] = 0x7F
        with pytest.raises(BadFile):
            read(resealed(bytes(bad)))


def test_a_kind_of_block_that_is_not_known_is_refused() -> None:
    bad = bytearray(written())
    bad[len(bad) - 32 - 48] = 9
    found = read(resealed(bytes(bad)))
    with pytest.raises(BadFile, match="of kind 9"):
        found.block("w", 0)


def test_blocks_of_a_large_tensor() -> None:
    large = replace(TENSOR, dtype=UINT8, shape=(3 << 20,), offset=100)
    assert (large.blocks, large.end) == (3, 100 + (3 << 20))
    assert large.block(2) == (100 + (2 << 20), 100 + (3 << 20))
    assert replace(large, shape=(5, 0)).blocks == 0
    assert replace(large, shape=()).block(0) == (100, 101)
