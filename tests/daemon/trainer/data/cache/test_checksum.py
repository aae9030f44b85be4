"""What storage and memory do to bytes changes the checksum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from zerotoolsd.trainer.data.cache.checksum import BLOCK_BYTES, COLUMNS, checksum

SECTOR = 4096
ROW = 8 * COLUMNS
BYTES = np.random.default_rng(0).bytes(3 * BLOCK_BYTES + 777)


def flipped(*places: int) -> bytes:
    """The bytes with bit 3 of these turned."""
    found = bytearray(BYTES)
    for place in places:
        found[place] ^= 8
    return bytes(found)


def swapped(first: int, second: int, count: int) -> bytes:
    found = bytearray(BYTES)
    found[first : first + count] = BYTES[second : second + count]
    found[second : second + count] = BYTES[first : first + count]
    return bytes(found)


DAMAGES: dict[str, Callable[[], bytes]] = {
    "a bit of the first byte": lambda: flipped(0),
    "a bit of the last byte": lambda: flipped(len(BYTES) - 1),
    "the same bit of two numbers of a row": lambda: flipped(8, 16),
    "the same bit of two numbers of a column": lambda: flipped(8, 8 + ROW),
    "the same bit of two blocks": lambda: flipped(8, 8 + BLOCK_BYTES),
    "two numbers in each other's place": lambda: swapped(8, 16, 8),
    "two sectors in each other's place": lambda: swapped(SECTOR, 3 * SECTOR, SECTOR),
    "two blocks in each other's place": lambda: swapped(0, BLOCK_BYTES, BLOCK_BYTES),
    "a sector of zeros": lambda: BYTES[:SECTOR] + bytes(SECTOR) + BYTES[2 * SECTOR :],
    "a sector of another place": lambda: BYTES[:SECTOR] + BYTES[:SECTOR] + BYTES[2 * SECTOR :],
    "the end gone": lambda: BYTES[:-1],
    "the end longer": lambda: BYTES + bytes(1),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_seen(damage: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(BYTES)
    (tmp_path / "b").write_bytes(DAMAGES[damage]())
    assert checksum(tmp_path / "a") != checksum(tmp_path / "b")


@pytest.mark.parametrize("size", [0, 1, 8, BLOCK_BYTES, BLOCK_BYTES + 1, len(BYTES)])
def test_it_follows_from_the_bytes_alone(size: int, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(BYTES[:size])
    assert checksum(tmp_path / "a") == checksum(tmp_path / "b")
    assert checksum(tmp_path / "a")[0] == size


def test_it_stays_what_it_was(tmp_path: Path) -> None:
    """Entries that are there are compared with what was noted."""
    (tmp_path / "a").write_bytes(bytes(range(256)) * 4096)
    assert checksum(tmp_path / "a") == (1 << 20, 3430559016)
