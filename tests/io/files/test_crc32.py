"""`crc32` is that of zlib, whichever library computes it."""

from __future__ import annotations

import importlib
import sys
import zlib
from types import ModuleType

import pytest

from zerotools.io.files import crc32 as module


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
