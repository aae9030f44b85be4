"""`crc32` is that of zlib, whichever library computes it."""

from __future__ import annotations

import importlib
import sys
import zlib
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.io.files import crc32 as module
from zerotools.io.files.crc32 import combine_crc32


@pytest.mark.parametrize("length", [0, 1, 63, 5119, 5121, 100_003])
def test_equals_zlib(length: int) -> None:
    data = bytes(number * number % 251 for number in range(length))
    assert module.crc32(data) == zlib.crc32(data)
    assert module.crc32(memoryview(data), 0xDEADBEEF) == zlib.crc32(data, 0xDEADBEEF)


@pytest.mark.parametrize("installed", [True, False])
def test_zlib_ng_computes_it_if_it_is_installed(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, library = ModuleType("zlib_ng"), ModuleType("zlib_ng.zlib_ng")
    library.crc32 = lambda data, value=0: -1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zlib_ng", package)
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", library if installed else None)
    try:
        importlib.reload(module)
        assert (module.crc32(b"") == -1) == installed
    finally:
        monkeypatch.undo()
        importlib.reload(module)


@given(st.binary(max_size=4096), st.binary(max_size=4096), st.integers(0, 40))
def test_the_crc_of_a_whole_follows_from_its_parts(first: bytes, second: bytes, times: int) -> None:
    second *= times
    combined = combine_crc32(zlib.crc32(first), zlib.crc32(second), len(second))
    assert combined == zlib.crc32(first + second)


def test_lengths_beyond_32_bits() -> None:
    megabyte_of_zeros = bytes(1 << 20)
    crc, length = zlib.crc32(megabyte_of_zeros), 1 << 20
    for _ in range(13):
        crc, length = combine_crc32(crc, crc, length), length * 2
    streamed = 0
    for _ in range(256):
        streamed = zlib.crc32(megabyte_of_zeros, streamed)
    whole, covered = streamed, 256 << 20
    while covered < length:
        whole, covered = combine_crc32(whole, whole, covered), covered * 2
    assert crc == whole
