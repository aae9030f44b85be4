from __future__ import annotations

from pathlib import Path

import pytest

from tests.io.torchzip.archives import opened
from zerotools.core.errors import BadFile

BYTES = bytes(range(200))


@pytest.mark.parametrize("kept", [1, 30, 60, 100, 1000])
def test_with_its_ends_kept_a_window_reads_the_same(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(BYTES)
    with opened(path, 20, 120) as window:
        known = window.keeping_ends(kept)
        for at in range(121):
            for count in (0, 1, 29, 30, 120 - at):
                if at + count <= 120:
                    assert known.read(at, count) == BYTES[20 + at : 20 + at + count]
        for at, count in ((0, 121), (120, 1), (-1, 1)):
            with pytest.raises(BadFile, match=r"has 120 bytes, so .* are outside"):
                known.read(at, count)


def test_kept_ends_are_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(BYTES)
    with opened(path) as window:
        known = window.keeping_ends(50)
        path.write_bytes(b"")
        assert known.read(10, 40) + known.read(150, 50) == BYTES[10:50] + BYTES[150:]
        with pytest.raises(BadFile, match="truncated"):
            known.read(49, 2)
