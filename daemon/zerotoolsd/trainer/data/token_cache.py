"""Caches tokenised data in a directory of the daemon, for restarts and for other jobs.

An entry is a directory. Its name is a digest of everything that determines its files: the data, the
tokenizer, the settings and the versions of libraries (`tokenising_fingerprint`). The entry gets
this name when it is complete.

A reader makes hard links to the files of an entry in its own directory, and verifies their
checksums there. The links stay valid if the entry is removed or replaced, so a reader needs no
lock. A damaged entry is built again. The process that builds an entry (the builder) holds the lock
of this entry, so that two jobs do not tokenise the same data. If the builder writes nothing for
some time, another job builds the entry too.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from zerotools.core.errors import BadRequest
from zerotools.io.files.exclusive_directory import OwnDirectory

DIRECTORY, MOST_BYTES = "ZEROTOOLS_DATA_CACHE", "ZEROTOOLS_DATA_CACHE_BYTES"
"""Environment variables of a rank: the directory of the token cache, and its largest size in
bytes.

Without them there is no cache.
"""
META = "entry.json"
_LOOK_SECONDS = 0.2
Build = Callable[[Path], dict[str, Any]]
"""Writes the files of an entry into the given directory, and returns facts about them as JSON
values.
"""


@dataclass(frozen=True)
class CacheEntry:
    """The complete files of an entry, in the directory `path`.

    Attributes:
        facts: the values that `Build` returned when it made the files.
        kept: the directory of the entry in the cache; None if the entry is not in the cache.
        note: a line for the log.
        is_new: whether this process has built the files.
    """

    path: Path
    facts: Mapping[str, Any]
    kept: Path | None = None
    note: str | None = None
    is_new: bool = False


@dataclass(frozen=True)
class TokenCache:
    """A cache of tokenised data in `directory`.

    If the cache is larger than `most_bytes`, the least recently used entries are removed. If a
    process builds an entry, but writes nothing for `stalled_seconds`, it is treated as failed.
    """

    directory: Path
    most_bytes: int
    stalled_seconds: float = 120.0

    def entry(
        self,
        key: str,
        build: Build,
        until_opened: ExitStack,
        report_wait: Callable[[int], None] = lambda _: None,
    ) -> CacheEntry:
        """Return the files of the entry `key`.

        If the entry does not exist, `build` makes its files. The returned files are deleted when
        `until_opened` is closed; a file that is open then stays readable.

        If another process is already building the entry, this method waits for it. While it waits,
        it calls `report_wait` with the number of bytes that the other process has written, whenever
        this number grows.

        Raises:
            OSError: the cache cannot be written, or the disk is full.
            ZerotoolsError: an error of `build`.
        """
        self._clear_drafts()
        own = until_opened.enter_context(self._own_directory(key))
        kept = self.directory / "entries" / key
        facts, note = _link_entry(kept, own)
        if facts is None:
            with self._turn_to_build(key, report_wait):
                facts, found = _link_entry(kept, own)  # somebody may have built it meanwhile
                note = note or found
                if facts is None:
                    return self._built(own, kept, build, note)
        with suppress(FileNotFoundError):  # removed meanwhile
            os.utime(kept)
        return CacheEntry(own, facts, kept)

    @contextmanager
    def _own_directory(self, key: str) -> Iterator[Path]:
        """Make a new directory, which no other process removes. Yield its path, and remove the
        directory at the end.
        """
        drafts = self.directory / "drafts"
        drafts.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = None
        while directory is None:
            with suppress(BlockingIOError):  # a process that clears has it before it is locked
                directory = OwnDirectory(drafts / f"{key}.{uuid.uuid4().hex}")
        try:
            yield directory.path
        finally:
            shutil.rmtree(directory.path, ignore_errors=True)
            directory.close()

    @contextmanager
    def _turn_to_build(self, key: str, report_wait: Callable[[int], None]) -> Iterator[None]:
        """Wait until no other process builds the entry `key`, or until its builder is stalled.

        `report_wait` is called with the number of bytes that the builder has written, whenever this
        number grows.
        """
        known, since = self._written(key), time.monotonic()
        with ExitStack() as turn:
            while True:
                with suppress(BlockingIOError):
                    turn.enter_context(_locked(self.directory / "locks" / key))
                    break
                now = self._written(key)
                if now != known:
                    known, since = now, time.monotonic()
                    report_wait(now)
                elif time.monotonic() - since >= self.stalled_seconds:
                    break
                time.sleep(_LOOK_SECONDS)
            yield

    def _written(self, key: str) -> int:
        return sum(_size(draft) for draft in (self.directory / "drafts").glob(f"{key}.*"))

    def _built(self, own: Path, kept: Path, build: Build, note: str | None) -> CacheEntry:
        facts = build(own)
        files = {file.name: list(file_checksum(file)) for file in sorted(own.iterdir())}
        (own / META).write_text(json.dumps({"files": files, "facts": facts}), "utf-8")
        try:
            self._publish(own, kept)
            self._evict_entries()
        except OSError as error:  # the built data still serves this job
            note = f"tokenised data cannot be stored in {self.directory}: {error.strerror}"
        return CacheEntry(own, facts, kept, note, is_new=True)

    def _publish(self, own: Path, kept: Path) -> None:
        """Link the files in `own` into the cache as the entry `kept`, in place of an older one."""
        with self._own_directory(kept.name) as publish, self._own_directory(kept.name) as old:
            for file in own.iterdir():
                os.link(file, publish / file.name)
            kept.parent.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                kept.rename(old / kept.name)  # damaged, or built by two
            try:
                publish.rename(kept)
            except OSError as error:  # another process has built it in this moment
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise

    def _clear_drafts(self) -> None:
        """Remove the unfinished directories of processes that have ended."""
        for draft in (self.directory / "drafts").glob("*"):
            with suppress(OSError, BadRequest), ExitStack() as locks:
                # Versions before 0.3 hold this lock while they write a draft.
                key = draft.name.partition(".")[0]
                if key == draft.name:
                    locks.enter_context(_locked(self.directory / "locks" / key))
                locks.callback(OwnDirectory(draft).close)
                shutil.rmtree(draft, ignore_errors=True)

    def _evict_entries(self) -> None:
        """Remove the least recently used entries until the cache has at most `most_bytes` bytes."""
        entries = sorted((self.directory / "entries").iterdir(), key=lambda path: _used(path))
        sizes = {path: _size(path) for path in entries}
        total = sum(sizes.values())
        for path in entries:
            if total <= self.most_bytes:
                return
            # Versions before 0.3 hold this lock until they have opened an entry.
            with (
                suppress(BlockingIOError, FileNotFoundError),
                _locked(self.directory / "locks" / path.name),
                self._own_directory(path.name) as old,
            ):
                path.rename(old / path.name)
                total -= sizes[path]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Return a context manager that holds the lock file `path`.

    Raises BlockingIOError if another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _link_entry(kept: Path, own: Path) -> tuple[dict[str, Any] | None, str | None]:
    """Link the files of the entry `kept` into the directory `own`. Return (the entry's facts, a
    note).

    If the entry is missing or damaged, the facts are None and `own` stays empty. If it is damaged,
    the note says so.
    """
    try:
        for file in list(kept.iterdir()):
            os.link(file, own / file.name)
        return _checked(own), None
    except FileNotFoundError:  # not there, or being removed
        problem = None
    except ValueError as error:
        problem = f"tokenised data in {kept} is damaged ({error}), so it is built again"
    for file in own.iterdir():
        file.unlink()
    return None, problem


def _checked(path: Path) -> dict[str, Any]:
    """Verify the checksums of the files in `path`, and return the facts of the entry.

    Raises ValueError with the first error.
    """
    try:
        tree = json.loads((path / META).read_bytes())
        files, facts = dict(tree["files"]), dict(tree["facts"])
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(f"{META} cannot be read") from None
    for name, measured in files.items():
        try:
            found = list(file_checksum(path / name))
        except OSError as error:
            raise ValueError(f"{name}: {error.strerror}") from None
        if found != measured:
            raise ValueError(f"{name} has changed since it was written")
    return facts


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
    """Return the cache that the environment variables name; None if the variables are not set.

    The daemon sets these variables for its ranks.
    """
    directory, most = environment.get(DIRECTORY), environment.get(MOST_BYTES, "")
    if not directory or not most.isdecimal() or int(most) == 0:
        return None
    return TokenCache(Path(directory), int(most))


BLOCK_BYTES = 1 << 19
COLUMNS = 512


def file_checksum(path: Path) -> tuple[int, int]:
    """Return (size, checksum) of a file, nearly as fast as it can be read. Raises OSError.

    Each block of 512 KiB is read as a table of integers. The checksum is the CRC-32 of the sums of
    all rows and columns. A damaged file has the same checksum only in two cases. Either at least
    four changes cancel out, so that all sums stay the same, or the CRC-32 is equal by chance (1 in
    2**32). CRC-32 of all bytes takes three times as long, and ranks may have no library for faster
    checksums.
    """
    block = bytearray(BLOCK_BYTES)
    view = memoryview(block)
    table = np.frombuffer(block, "<u8").reshape(-1, COLUMNS)
    size = found = 0
    with path.open("rb") as file:
        while filled := file.readinto(view):
            view[filled:] = bytes(BLOCK_BYTES - filled)
            for axis in (0, 1):
                found = zlib.crc32(table.sum(axis, dtype="<u8").data, found)
            size += filled
    return size, found


FORM = 4
"""Version of the format of the files, and of the way in which examples are read.

It is a part of the entry's name.
"""
LIBRARIES = ("tokenizers", "transformers", "jinja2")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
_SETTLED_SECONDS = 2.0
"""Age in seconds below which a file's digest is not cached.

A file that has just changed may change again and keep the same time stamp.
"""


def tokenising_fingerprint(
    paths: Sequence[Path], tokenizer: Path | None, settings: Any, stamps: Path
) -> str:
    """Return a digest of everything that determines tokenised data.

    The digest covers the content of the files `paths`, the files in the directory `tokenizer`
    (None: no tokenizer), the `settings`, which are plain values, and the versions of libraries. The
    directory `stamps` caches the digests of files.
    """
    content = [(path.suffix.lower(), cached_digest(path, stamps)) for path in paths]
    of_tokenizer = [] if tokenizer is None else tokenizer_digests(tokenizer)
    versions = [_version(name) for name in LIBRARIES]
    tree = [FORM, content, of_tokenizer, settings, versions]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def tokenizer_digests(directory: Path) -> list[tuple[str, str]]:
    """Return (name, digest) of each file in `directory` that may belong to a tokenizer."""
    files = sorted(
        path
        for path in (*directory.iterdir(), *directory.glob("*templates/*"))
        if path.is_file() and path.suffix.lower() not in _WEIGHTS
    )
    return [(str(path.relative_to(directory)), sha256_of(path)) for path in files]


def cached_digest(path: Path, stamps: Path) -> str:
    """Return the SHA-256 of the file `path`.

    The digest is cached in the directory `stamps`, and is valid while the size and times of the
    file are unchanged.
    """
    status = path.stat()
    stamp = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    note = stamps / hashlib.sha256(str(path.absolute()).encode("utf-8", "replace")).hexdigest()
    with suppress(OSError, ValueError, LookupError, TypeError):
        noted = json.loads(note.read_bytes())
        if noted["stamp"] == stamp and isinstance(noted["digest"], str):
            return str(noted["digest"])
    found = sha256_of(path)
    if time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED_SECONDS:
        with suppress(OSError):
            stamps.mkdir(parents=True, exist_ok=True)
            draft = note.with_name(f"{note.name}.{time.monotonic_ns()}")
            draft.write_text(json.dumps({"stamp": stamp, "digest": found}))
            draft.replace(note)
    return found


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
