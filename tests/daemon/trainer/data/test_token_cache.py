"""Tokenised data is built once, whole, for all who come, and never taken when it is damaged."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zerotools.core.errors import BadFile
from zerotoolsd.trainer.data.token_cache import (
    BLOCK_BYTES,
    COLUMNS,
    META,
    CacheEntry,
    TokenCache,
    _locked,
    cache_from,
    file_checksum,
    tokenising_fingerprint,
)


class Builder:
    """Writes a file of `size` bytes, and counts how often."""

    def __init__(self, size: int = 10) -> None:
        self.size, self.count = size, 0

    def __call__(self, directory: Path) -> dict[str, Any]:
        self.count += 1
        (directory / "ids").write_bytes(bytes(self.size))
        return {"vocabulary": self.size}


def take(cache: TokenCache, key: str, build: Any) -> CacheEntry:
    """The entry as others find it, whose own files are gone."""
    with ExitStack() as stack:
        found = cache.entry(key, build, stack)
        assert found.path.is_dir()
    assert not found.path.exists()
    assert found.kept is not None
    return replace(found, path=found.kept)


def test_it_is_built_once_and_taken_again(tmp_path: Path) -> None:
    cache, build = TokenCache(tmp_path / "cache", 1 << 20), Builder()
    first, again = take(cache, "a", build), take(cache, "a", build)
    assert (build.count, first.is_new, again.is_new) == (1, True, False)
    assert first.facts == again.facts == {"vocabulary": 10}
    assert (again.path / "ids").read_bytes() == bytes(10)


@pytest.mark.parametrize("damage", ["bytes", "short", "gone", "meta"])
def test_what_is_damaged_is_built_again_and_said(tmp_path: Path, damage: str) -> None:
    cache, build = TokenCache(tmp_path, 1 << 20), Builder()
    path = take(cache, "a", build).path
    if damage == "gone":
        (path / "ids").unlink()
    else:
        name, content = {"bytes": ("ids", b"x" * 10), "short": ("ids", b""), "meta": (META, b"{")}[
            damage
        ]
        (path / name).write_bytes(content)
    found = take(cache, "a", build)
    assert build.count == 2
    assert found.note is not None
    assert f"tokenised data in {path} is damaged" in found.note
    assert (path / "ids").read_bytes() == bytes(10)
    assert take(cache, "a", build).note is None


def test_what_fails_or_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    cache = TokenCache(tmp_path, 1 << 20)

    def fail(directory: Path) -> dict[str, Any]:
        (directory / "ids").write_bytes(b"half")
        raise BadFile("no text")

    with pytest.raises(BadFile, match="no text"):
        take(cache, "a", fail)
    for key in ("a.1", "b.2", "c"):  # as kills leave them, one by an older version
        (tmp_path / "drafts" / key).mkdir(parents=True)
        (tmp_path / "drafts" / key / "old").touch()
    build = Builder()
    found = take(cache, "a", build)
    assert sorted(path.name for path in found.path.iterdir()) == [META, "ids"]
    assert list((tmp_path / "drafts").iterdir()) == []


def test_two_jobs_at_once_build_it_once(tmp_path: Path) -> None:
    cache, inside, go = TokenCache(tmp_path, 1 << 20), threading.Event(), threading.Event()
    built: list[str] = []

    def slow(directory: Path) -> dict[str, Any]:
        inside.set()
        assert go.wait(60)
        built.append("first")
        (directory / "ids").write_bytes(b"1")
        return {}

    def never(directory: Path) -> dict[str, Any]:
        built.append("second")
        return {}

    first = threading.Thread(target=take, args=(cache, "a", slow))
    second = threading.Thread(target=take, args=(cache, "a", never))
    first.start()
    assert inside.wait(60)
    second.start()
    go.set()
    first.join()
    second.join()
    assert built == ["first"]


def test_a_stopped_job_holds_nobody_up(tmp_path: Path) -> None:
    cache, build = TokenCache(tmp_path, 1 << 20, stalled_seconds=0), Builder()
    with ExitStack() as opening:
        cache.entry("a", build, opening)  # a job that has not opened its data yet
        assert not take(cache, "a", build).is_new
        with _locked(tmp_path / "locks" / "a"):  # one that is stopped while it builds
            assert not take(cache, "a", build).is_new
            (tmp_path / "entries" / "a" / "ids").write_bytes(b"damaged")
            assert take(cache, "a", build).is_new
    assert build.count == 2
    assert not take(cache, "a", build).is_new


def test_a_builder_that_writes_is_waited_for(tmp_path: Path) -> None:
    cache = TokenCache(tmp_path, 1 << 20, stalled_seconds=60)
    inside, go = threading.Event(), threading.Event()

    def slow(directory: Path) -> dict[str, Any]:
        inside.set()
        assert go.wait(60)
        (directory / "ids").write_bytes(b"1")
        return {}

    first = threading.Thread(target=take, args=(cache, "a", slow))
    first.start()
    assert inside.wait(60)
    found: list[CacheEntry] = []
    second = threading.Thread(target=lambda: found.append(take(cache, "a", Builder())))
    second.start()
    second.join(0.05)
    assert found == []
    go.set()
    first.join()
    second.join()
    assert not found[0].is_new


def test_who_waits_hears_how_much_is_written(tmp_path: Path) -> None:
    cache = TokenCache(tmp_path, 1 << 20, stalled_seconds=60)
    inside, told, heard = threading.Event(), threading.Event(), list[int]()

    def slow(directory: Path) -> dict[str, Any]:
        inside.set()
        with (directory / "ids").open("wb", buffering=0) as file:
            while not told.wait(0.01):
                file.write(b"1")
        return {}

    def others(nbytes: int) -> None:
        heard.append(nbytes)
        told.set()

    first = threading.Thread(target=take, args=(cache, "a", slow))
    first.start()
    assert inside.wait(60)
    with ExitStack() as stack:
        found = cache.entry("a", Builder(), stack, others)
    first.join()
    assert heard
    assert heard[0] > 0
    assert not found.is_new


def test_two_that_build_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    cache, inner = TokenCache(tmp_path, 1 << 20, stalled_seconds=0), Builder()

    def outer(directory: Path) -> dict[str, Any]:
        assert take(cache, "a", inner).is_new  # another job, which has not waited
        return Builder()(directory)

    assert take(cache, "a", outer).is_new
    assert not take(cache, "a", inner).is_new
    assert inner.count == 1
    assert list((tmp_path / "drafts").iterdir()) == []


def test_where_files_cannot_be_linked_a_job_builds_once_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    cache, build = TokenCache(tmp_path, 1 << 20), Builder()
    with ExitStack() as stack:
        found = cache.entry("a", build, stack)
        assert (found.path / "ids").read_bytes() == bytes(10)
    assert found.note == f"tokenised data cannot be stored in {tmp_path}: Operation not permitted"
    assert build.count == 1


def test_the_oldest_go_and_what_was_taken_stays_readable(tmp_path: Path) -> None:
    cache = TokenCache(tmp_path, 3000)
    for number, key in enumerate("abc"):
        path = take(cache, key, Builder(900)).path
        os.utime(path, (number, number))
    with ExitStack() as stack:
        taken = cache.entry("a", Builder(), stack)
        os.utime(tmp_path / "entries" / "a", (0, 0))
        take(cache, "d", Builder(900))
        left = sorted(path.name for path in (tmp_path / "entries").iterdir())
        assert (taken.path / "ids").read_bytes() == bytes(900)
    assert left == ["c", "d"] or left == ["b", "c", "d"]


def test_where_the_daemon_says_it_is(tmp_path: Path) -> None:
    there = {"ZEROTOOLS_DATA_CACHE": str(tmp_path), "ZEROTOOLS_DATA_CACHE_BYTES": "5"}
    assert cache_from(there) == TokenCache(tmp_path, 5)
    assert cache_from({**there, "ZEROTOOLS_DATA_CACHE_BYTES": "0"}) is None
    assert cache_from({}) is None


def test_the_key_follows_content_tokenizer_and_settings(tmp_path: Path) -> None:
    data, tokenizer, stamps = tmp_path / "a.txt", tmp_path / "tok", tmp_path / "stamps"
    tokenizer.mkdir()

    def key(settings: Any = 1) -> str:
        return tokenising_fingerprint([data], tokenizer, settings, stamps)

    (tokenizer / "tokenizer.json").write_text("{}")
    data.write_text("one")
    os.utime(data, (1, 1))
    first = key()
    assert key() == first
    assert key(2) != first
    (tokenizer / "model.safetensors").write_text("weights are no part of it")
    assert key() == first
    (tokenizer / "chat_template.jinja").write_text("{{ messages }}")
    assert key() != first
    (tokenizer / "chat_template.jinja").unlink()
    data.write_text("two")
    os.utime(data, (1, 1))
    assert key() != first
    data.write_text("one")
    assert key() == first
    data.rename(tmp_path / "b.txt")
    data = tmp_path / "b.txt"
    assert key() == first


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
    assert file_checksum(tmp_path / "a") != file_checksum(tmp_path / "b")


@pytest.mark.parametrize("size", [0, 1, 8, BLOCK_BYTES, BLOCK_BYTES + 1, len(BYTES)])
def test_it_follows_from_the_bytes_alone(size: int, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(BYTES[:size])
    assert file_checksum(tmp_path / "a") == file_checksum(tmp_path / "b")
    assert file_checksum(tmp_path / "a")[0] == size


def test_it_stays_what_it_was(tmp_path: Path) -> None:
    """Entries that are there are compared with what was noted."""
    (tmp_path / "a").write_bytes(bytes(range(256)) * 4096)
    assert file_checksum(tmp_path / "a") == (1 << 20, 3430559016)
