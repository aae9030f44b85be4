from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zerotools.io.output.preallocate_on_ext4 import fallocate, file_system_type, reserve_blocks

EXT, XFS = 0xEF53, 0x58465342
SIZE = 3 * 2**20 + 5


def refusing(code: int) -> Callable[[int, int], None]:
    def allocate(_descriptor: int, _size: int) -> None:
        raise OSError(code, os.strerror(code))

    return allocate


def test_neither_size_nor_bytes_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as file:
        file.truncate(SIZE)
        os.pwrite(file.fileno(), b"header", 64)
        reserve_blocks(file.fileno(), SIZE)
        taken = os.fstat(file.fileno()).st_blocks * 512
        kind = file_system_type(file.fileno())
    data = path.read_bytes()
    assert (len(data), data[64:70], data.strip(b"\0")) == (SIZE, b"header", b"header")
    assert kind != 0
    assert (taken >= SIZE) is (kind == EXT)


def test_other_file_systems_are_left_alone() -> None:
    reserve_blocks(0, SIZE, type_of=lambda _: XFS, allocate=refusing(errno.ENOSPC))
    reserve_blocks(0, 0, type_of=lambda _: EXT, allocate=refusing(errno.ENOSPC))


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EINTR])
def test_a_refusal_leaves_an_ordinary_file(code: int) -> None:
    asked: list[tuple[int, int]] = []

    def allocate(descriptor: int, size: int) -> None:
        asked.append((descriptor, size))
        raise OSError(code, os.strerror(code))

    reserve_blocks(7, SIZE, type_of=lambda _: EXT, allocate=allocate)
    assert asked == [(7, SIZE)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_before_anything_is_written(code: int) -> None:
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        reserve_blocks(0, SIZE, type_of=lambda _: EXT, allocate=refusing(code))
    assert raised.value.errno == code


def test_errors_of_the_system_are_raised(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=r"Bad file|not supported") as raised:
            fallocate(descriptor, SIZE)
        assert raised.value.errno in (errno.EBADF, errno.EOPNOTSUPP)
    finally:
        os.close(descriptor)
    assert file_system_type(descriptor) == 0
