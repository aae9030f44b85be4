from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.io.files.reflinks import BLOCK_BYTES, LEAST_BYTES, SharedBlocks, whole_blocks

offsets = st.integers(0, 10 * BLOCK_BYTES)


@given(offsets, st.integers(0, 9), offsets, st.integers(0, 3 * LEAST_BYTES))
def test_only_whole_blocks_of_both_files(
    source: int, blocks: int, offset: int, length: int
) -> None:
    for source_offset in (source, offset + blocks * BLOCK_BYTES):
        begin, end = whole_blocks(source_offset, offset, length)
        assert 0 <= begin <= end <= length
        if end:
            edges = {at + edge for at in (source_offset, offset) for edge in (begin, end)}
            assert {each % BLOCK_BYTES for each in edges} == {0}
            assert begin < BLOCK_BYTES
            assert length - end < BLOCK_BYTES
        else:
            is_aligned = (source_offset - offset) % BLOCK_BYTES == 0
            assert not is_aligned or length < LEAST_BYTES + 2 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        (errno.EOPNOTSUPP, True),
        (errno.EXDEV, True),
        (errno.EINVAL, True),
        (errno.ENOTTY, True),
        (errno.EINTR, False),
    ],
)
def test_a_refusal(code: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _request: int, _wanted: bytes) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    blocks = SharedBlocks()
    assert not blocks.share(3, 0, 4, 0, BLOCK_BYTES)
    assert blocks.is_refused is is_refused


def test_the_kernel_shares_blocks_or_refuses(tmp_path: Path) -> None:
    data = os.urandom(2 * BLOCK_BYTES)
    (tmp_path / "source").write_bytes(data)
    blocks = SharedBlocks()
    with (tmp_path / "source").open("rb") as source, (tmp_path / "output").open("w+b") as output:
        output.truncate(2 * BLOCK_BYTES)
        ends = source.fileno(), BLOCK_BYTES, output.fileno(), 0
        is_shared = blocks.share(*ends, BLOCK_BYTES)
    assert is_shared is not blocks.is_refused
    expected = (data[BLOCK_BYTES:] if is_shared else bytes(BLOCK_BYTES)) + bytes(BLOCK_BYTES)
    assert (tmp_path / "output").read_bytes() == expected
