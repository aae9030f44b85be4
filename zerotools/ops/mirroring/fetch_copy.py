"""Fetch one checkpoint of a job from an object store to the disk. It gets its name on the disk only
when it is complete.

Every file is compared with the manifest while it is received. If a fetch is killed, its staging
directory remains, and the next fetch keeps the complete files there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import cast

from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import sync_directory
from zerotools.io.files.open_source import FarSource
from zerotools.io.files.regular_files import read_regular, source_file
from zerotools.io.stores.store_path import StorePath
from zerotools.runs.find_job_checkpoints import STAGING_PREFIX, TRASH_PREFIX
from zerotools.runs.manifest import (
    LARGEST_MANIFEST,
    MANIFEST,
    ManifestEntry,
    read_manifest,
    verify_manifest,
    write_durably,
)

_FILES = 4
_PIECE = 8 * 2**20
_AHEAD = 3
"""The number of pieces of each file that are requested at the same time."""


class _Stopped(Exception):
    """The fetch of this file was stopped because the fetch of another file failed."""


def fetch_copy(
    source: StorePath, destination: Path, *, on_bytes: Callable[[int], None] = lambda _: None
) -> int:
    """Fetch the checkpoint at `source` to `destination`, and replace an incomplete checkpoint
    there. Return the number of fetched bytes. At most 96 MiB are requested at a time.

    Raises:
        BadFile: an object differs from the manifest, or changes during the fetch.
        HostUnreachable: the store does not answer.
        OSError: the disk fails, or is full (ENOSPC).
    """
    entries = read_manifest(source)
    manifest = read_regular(source / MANIFEST, LARGEST_MANIFEST)
    staging = destination.with_name(f"{STAGING_PREFIX}fetched-{destination.name}")
    staging.mkdir(parents=True, exist_ok=True)
    left = _files_to_fetch(staging, manifest, entries)
    _check_room(destination, staging, sum(entries[name].size for name in left))
    fetching = _Fetching(source, staging, entries, on_bytes)
    fetched = fetching.run(left)
    for folder, _, _ in os.walk(staging):
        sync_directory(Path(folder))
    _put_in_place(staging, destination)
    return fetched


def _files_to_fetch(
    staging: Path, manifest: bytes, entries: Mapping[str, ManifestEntry]
) -> list[str]:
    """Return the files that no earlier fetch of the same checkpoint completed. Existing files are
    compared with the manifest again."""
    try:
        same = read_regular(staging / MANIFEST, LARGEST_MANIFEST, is_source=False) == manifest
    except (OSError, BadFile):
        same = False
    if not same:
        shutil.rmtree(staging)
        staging.mkdir()
        write_durably(staging / MANIFEST, manifest.decode())
        return list(entries)
    return sorted({each.file for each in verify_manifest(staging) if each.file} & {*entries})


def _check_room(destination: Path, staging: Path, needed: int) -> None:
    free = shutil.disk_usage(staging).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{needed} bytes are needed, but {free} are free; free some space, or name another "
            "output_dir",
            str(destination),
        )


def _put_in_place(staging: Path, destination: Path) -> None:
    if os.path.lexists(destination):  # an incomplete one: whole ones are not fetched
        trash = destination.with_name(f"{TRASH_PREFIX}{destination.name}")
        shutil.rmtree(trash, ignore_errors=True)
        destination.rename(trash)
        staging.rename(destination)
        shutil.rmtree(trash, ignore_errors=True)
    else:
        staging.rename(destination)
    sync_directory(destination.parent)


class _Fetching:
    """The transfer of one checkpoint's files."""

    def __init__(
        self,
        source: StorePath,
        staging: Path,
        entries: Mapping[str, ManifestEntry],
        on_bytes: Callable[[int], None],
    ) -> None:
        self._source = source
        self._staging = staging
        self._entries = entries
        self._on_bytes = on_bytes
        self._stopped = Event()

    def run(self, names: list[str]) -> int:
        with ThreadPoolExecutor(_FILES, thread_name_prefix="file") as pool:
            coming = [pool.submit(self._fetch, name) for name in names]
            try:
                ended, _ = wait(coming, return_when=FIRST_EXCEPTION)
                for each in ended:
                    each.result()
            except BaseException:  # raised again, when all have come to their ends
                self._stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return sum(self._entries[name].size for name in names)

    def _fetch(self, name: str) -> None:
        path, entry = self._staging / name, self._entries[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        try:
            with source_file(self._source / name) as source, path.open("wb") as file:
                far, size = cast(FarSource, source), source.status().st_size
                if size != entry.size:
                    raise self._differs(name, f"{size} bytes")
                for at in range(0, size, _AHEAD * _PIECE):
                    if self._stopped.is_set():
                        raise _Stopped
                    for piece in _pieces(far, at, min(size, at + _AHEAD * _PIECE)):
                        digest.update(piece)
                        file.write(piece)
                        self._on_bytes(len(piece))
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError as error:
            raise BadFile(f"{error.filename} is missing, and {MANIFEST} lists it") from None
        if digest.hexdigest() != entry.sha256:
            raise self._differs(name, f"SHA-256 {digest.hexdigest()[:12]}…")

    def _differs(self, name: str, has: str) -> BadFile:
        entry = self._entries[name]
        return BadFile(
            f"{self._source / name} has {has}, but {MANIFEST} has {entry.size} bytes and SHA-256 "
            f"{entry.sha256[:12]}…: it is damaged; resume from an older checkpoint"
        )


def _pieces(source: FarSource, begin: int, end: int) -> list[memoryview]:
    """Return the bytes [begin, end) of a file in order, from several requests in parallel."""
    ranges = [(at, min(end, at + _PIECE)) for at in range(begin, end, _PIECE)]
    return [part for parts in source.fetch(ranges)() for part in parts]
