"""Disks that are really full: a tmpfs of few blocks and inodes, where a process may mount one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


class SmallDisk:
    """A file system of its own at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast: list[Path] = []

    def fill(self) -> None:
        """Take every inode, then every block."""
        if (self.path / "ballast").exists():
            raise AssertionError("it is filled already")
        block = self.path / "ballast"
        fd = os.open(block, os.O_CREAT | os.O_WRONLY, 0o600)
        self._ballast.append(block)
        self.take_inodes()
        try:
            while True:
                os.write(fd, bytes(4096))
        except OSError:
            os.close(fd)

    def take_inodes(self) -> None:
        """Take every inode alone."""
        number = len(self._ballast)
        while True:
            path = self.path / f"ballast-{number}"
            try:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            except OSError:
                return
            self._ballast.append(path)
            number += 1

    def free(self) -> None:
        """Give back what was taken."""
        for path in self._ballast:
            path.unlink()
        self._ballast.clear()


@contextmanager
def mounted(path: Path, kib: int = 2048, inodes: int = 200) -> Iterator[SmallDisk | None]:
    """A small disk; None where this process may not mount one."""
    path.mkdir()
    options = f"size={kib}k,nr_inodes={inodes},mode=700".encode()
    where = os.fsencode(path)
    if _libc.mount(b"zerotools-test", where, b"tmpfs", 0, options):
        yield None
        return
    try:
        yield SmallDisk(path)
    finally:
        _libc.umount2(where, 2)
