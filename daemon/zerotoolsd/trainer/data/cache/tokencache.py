"""Tokenised data that restarts and other jobs take again, in a directory of the daemon.

An entry is a directory whose name is the digest of all that its files follow from: the content of
the data, the tokenizer and the settings. It gets its name when it is whole. Whoever builds or takes
one holds its lock, so that two jobs do not tokenise the same data, and none is removed before all
ranks have opened it; the lock goes with the process. Every file is compared with its checksum when
it is taken, and a damaged entry is built again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY, MOST_BYTES = "ZEROTOOLS_DATA_CACHE", "ZEROTOOLS_DATA_CACHE_BYTES"
"""Variables of the ranks: where the cache is, and how large it may become. Without them there is
none."""
META = "entry.json"
_AT_ONCE = 1 << 22
Build = Callable[[Path], dict[str, Any]]
"""Writes the files of an entry into a directory; what else there is to know of them, as JSON."""


@dataclass(frozen=True)
class CacheEntry:
    """A directory of files that are whole, and what `Build` said of them. `note` is for people."""

    path: Path
    facts: Mapping[str, Any]
    note: str | None = None
    is_new: bool = False


@dataclass(frozen=True)
class TokenCache:
    """Entries below `directory`; the ones that were used longest ago go where all together have
    more than `most_bytes`."""

    directory: Path
    most_bytes: int

    def entry(self, key: str, build: Build, until_opened: ExitStack) -> CacheEntry:
        """The entry `key`, built if it is not there; it is not removed while `until_opened` is.

        Raises:
            OSError: the cache cannot be written, or not so much.
            ZerotoolsError: what `build` raises.
        """
        lock = until_opened.enter_context(_locked(self.directory / "locks" / key))
        path, note = self.directory / "entries" / key, None
        if path.is_dir():
            try:
                entry = CacheEntry(path, _checked(path))
            except ValueError as error:
                note = f"tokenised data in {path} is damaged ({error}): built again"
                shutil.rmtree(path)
            else:
                os.utime(path)
                fcntl.flock(lock, fcntl.LOCK_SH)
                return entry
        built = CacheEntry(path, self._built(path, build), note, is_new=True)
        fcntl.flock(lock, fcntl.LOCK_SH)
        self._make_room()
        return built

    def _built(self, path: Path, build: Build) -> dict[str, Any]:
        draft = self.directory / "drafts" / path.name  # nobody else's: the lock is held
        self._clear_drafts()
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            facts = build(draft)
            files = {file.name: list(_measured(file)) for file in sorted(draft.iterdir())}
            (draft / META).write_text(json.dumps({"files": files, "facts": facts}), "utf-8")
            path.parent.mkdir(exist_ok=True)
            draft.rename(path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return facts

    def _clear_drafts(self) -> None:
        """Remove what was begun by processes that are gone: what is being built is locked."""
        for draft in (self.directory / "drafts").glob("*"):
            with suppress(BlockingIOError), _locked(self.directory / "locks" / draft.name, False):
                shutil.rmtree(draft, ignore_errors=True)

    def _make_room(self) -> None:
        """Remove what was used longest ago; what is in use now stays."""
        entries = sorted((self.directory / "entries").iterdir(), key=lambda path: _used(path))
        sizes = {path: _size(path) for path in entries}
        total = sum(sizes.values())
        for path in entries:
            if total <= self.most_bytes:
                return
            with suppress(BlockingIOError), _locked(self.directory / "locks" / path.name, False):
                shutil.rmtree(path, ignore_errors=True)
                total -= sizes[path]


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[int]:
    """Hold the lock; without `wait`, raise BlockingIOError where somebody else does."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield lock
    finally:
        os.close(lock)


def _checked(path: Path) -> dict[str, Any]:
    """What is known of the files in `path`. Raises ValueError saying what is wrong with them."""
    try:
        tree = json.loads((path / META).read_bytes())
        files, facts = dict(tree["files"]), dict(tree["facts"])
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(f"{META} cannot be read") from None
    for name, measured in files.items():
        try:
            found = list(_measured(path / name))
        except OSError as error:
            raise ValueError(f"{name}: {error.strerror}") from None
        if found != measured:
            raise ValueError(f"{name} has other bytes than were written")
    return facts


def _measured(path: Path) -> tuple[int, int]:
    """(size, CRC-32) of a file."""
    size = checksum = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_AT_ONCE):
            checksum = zlib.crc32(piece, checksum)
            size += len(piece)
    return size, checksum


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    with suppress(OSError):
        return sum(file.stat().st_size for file in path.iterdir())
    return 0


def cache_from(environment: Mapping[str, str]) -> TokenCache | None:
    """The cache that the daemon gives its ranks; None: there is none."""
    directory, most = environment.get(DIRECTORY), environment.get(MOST_BYTES, "")
    if not directory or not most.isdecimal() or int(most) == 0:
        return None
    return TokenCache(Path(directory), int(most))
