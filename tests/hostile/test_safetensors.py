"""safetensors files whose headers lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.safetensors.files import entry, file_bytes
from zerotools.core.errors import BadFile, Unsupported, ZerotoolsError
from zerotools.formats.safetensors.header import read_header

U8 = entry("U8", [4], 0, 4)
REFUSED: dict[str, tuple[Any, bytes, str]] = {
    "an overlap": ({"a": U8, "b": entry("U8", [4], 2, 6)}, b"123456", "they overlap"),
    "the same bytes twice": ({"a": U8, "b": U8}, b"1234", "they overlap"),
    "a hole": ({"a": U8, "b": entry("U8", [1], 5, 6)}, b"123456", "leave a hole"),
    "a hole at the start": ({"a": entry("U8", [1], 1, 2)}, b"12", "leave a hole"),
    "bytes behind the last": ({"a": U8}, b"12345", "something was appended"),
    "too few bytes": ({"a": U8}, b"123", "truncated"),
    "an offset far outside": ({"a": entry("U8", [4], 2**62, 2**62 + 4)}, b"1234", "hole"),
    "offsets in reverse": ({"a": entry("U8", [4], 4, 0)}, b"1234", "needs 4 bytes"),
    "another size": ({"a": entry("F32", [4], 0, 4)}, b"1234", "needs 16 bytes"),
    "a shape that overflows": ({"a": entry("U8", [2**40, 2**40], 0, 4)}, b"1234", "needs"),
    "a negative shape": ({"a": entry("U8", [-4], 0, 4)}, b"1234", "lacks a dtype, a shape"),
    "a shape of floats": ({"a": {**U8, "shape": [4.0]}}, b"1234", "lacks"),
    "a shape of booleans": ({"a": {**U8, "shape": [True]}}, b"1", "lacks"),
    "one offset": ({"a": {**U8, "data_offsets": [4]}}, b"1234", "1 data_offsets"),
    "no dtype": ({"a": {"shape": [4], "data_offsets": [0, 4]}}, b"1234", "lacks"),
    "a tensor that is text": ({"a": "b"}, b"", "not a JSON object"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "table of strings"),
    "a key twice": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', b"", "twice"),
    "no JSON": (b"{nope", b"", "not JSON"),
    "no object": (b"[]", b"", "does not start with"),
    "a space before": (b" {}", b"", "does not start with"),
    "no text": (b"{\xff}", b"", "not JSON"),
    "deep JSON": (b'{"a":' + b"[" * 100_000, b"", "not JSON"),
    "a huge number": (b'{"a":' + b"9" * 10_000 + b"}", b"", "not JSON"),
}


@pytest.mark.parametrize(("header", "data", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_header_that_lies(tmp_path: Path, header: Any, data: bytes, said: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_bytes(header, data))
    with pytest.raises(BadFile, match=said) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [100_000_001, 2**63, 2**64 - 1, 3])
def test_a_header_length_that_lies_allocates_nothing(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(BadFile, match=f"its header would have {length}"):
        read_header(path)


@pytest.mark.parametrize("data", [b"", b"\2", b"\2\0\0\0\0\0\0"])
def test_a_file_without_a_whole_length(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(BadFile, match=f"has {len(data)} bytes, fewer than 8: it is truncated"):
        read_header(path)


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_bytes({"a": entry("F4", [2], 0, 1)}, b"1"))
    with pytest.raises(Unsupported, match=r"'a': element type 'F4'"):
        read_header(path)


@pytest.mark.parametrize(
    "info",
    [
        "{", "[]", "{}", '{"a": 1}', "[" * 100_000,
        *(f'{{"a": {{"saved_offsets": [{at}]}}}}' for at in ("0, 0", "-1", "true", "1.5", "1e99")),
    ],
)  # fmt: skip
def test_blocks_without_a_place(tmp_path: Path, info: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_bytes({"__metadata__": {"DCP_SHARDING_INFO": info}, "a": U8}, b"1234"))
    with pytest.raises(BadFile, match="DCP_SHARDING_INFO"):
        read_header(path)


GOOD = file_bytes(
    {"a": U8, "b": entry("I16", [1, 2], 4, 8), "c": entry("F64", [], 8, 16)}, b"." * 16
)


@given(st.data())
def test_noise_gives_our_errors_only(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    noisy = bytearray(GOOD)
    for _ in range(data.draw(st.integers(0, 4))):
        noisy[data.draw(st.integers(0, len(noisy) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "noisy.safetensors"
    path.write_bytes(noisy[: data.draw(st.integers(0, len(noisy)))])
    try:
        header = read_header(path)
    except ZerotoolsError:
        return
    assert sum(e.end - e.begin for e in header.entries.values()) <= len(noisy)
