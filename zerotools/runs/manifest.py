"""MANIFEST.json: the size and SHA-256 of every file of a checkpoint directory.

The manifest is written last, after all other files are written and fsynced, so a directory with a
manifest is complete. It lets a reader detect truncated and corrupted files. Standard library only,
because the training process imports this module too.

    {"version": 1, "files": {"dcp/__0_0.distcp": {"size": 123, "sha256": "..."}}}

With `stamps` the manifest also records the identity of each file (`"stamp"`: mtime and ctime in
nanoseconds, inode), and the machine and boot under which the digests were computed (`"boot"`).
Until the next boot of that machine, a file with the same stamp has not been written again. So a job
that restarts after a crash need not read such a file. A file that was copied or written again has
another stamp, and after a reboot all stamps are ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Problem
from zerotools.core.errors import BadFile
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.exclusive_directory import new_text_file
from zerotools.io.files.open_files import sync_directory
from zerotools.io.files.read_json import read_json
from zerotools.io.files.regular_files import source_file
from zerotools.runs.job_checkpoint_file_names import MANIFEST as MANIFEST

VERSION = 1
# Prefix of the journal and the marker, which may be added or removed without other changes.
_ABOUT_WRITING = ".zerotools-"
LARGEST_MANIFEST = 64 * 2**20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """The entry of one file in the manifest: `size` in bytes, `sha256` in lower-case hex.

    `stamp` identifies the state of the file. It is None if the digest was computed before the last
    boot of this machine, or on another machine.
    """

    size: int
    sha256: str
    stamp: tuple[int, ...] | None = field(default=None, compare=False)


def write_manifest(directory: Path, *, threads: int | None = None, stamps: bool = False) -> Path:
    """Compute the digest of every file below `directory`, and write MANIFEST.json (fsynced and
    renamed).

    The files must be fsynced already. Only the process that wrote the files may pass `stamps=True`
    (see the module's docstring). `threads` files are read at once (default: one per core, at most
    8). Return the path of the manifest.

    Raises:
        BadFile: something below `directory` is neither a regular file nor a directory.
    """
    names = sorted(_regular_files(directory))
    before = {name: _stamp((directory / name).stat()) for name in names} if stamps else {}
    files: dict[str, dict[str, Any]] = {
        name: {"size": entry.size, "sha256": entry.sha256}
        for name, entry in digests_of(directory, names, threads=threads).items()
    }
    for name, stamp in before.items():
        files[name]["stamp"] = list(stamp)
    return _write(directory, files, _boot() if stamps else None)


def digests_of(
    directory: Path, names: Collection[str], *, threads: int | None = None
) -> dict[str, ManifestEntry]:
    """Return the manifest entries (size and SHA-256) of the files `names` in `directory`. Like
    `write_manifest`, it reads several files at once. Raises OSError.
    """
    with ThreadPoolExecutor(threads or _default_threads()) as pool:
        entries = pool.map(lambda name: _digest(directory / name), names)
        return dict(zip(names, entries, strict=True))


def rewrite_manifest(
    directory: Path, before: Path, *, gone: Collection[str], changed: Collection[str]
) -> None:
    """Write a new manifest in `directory`, which has the files of the directory `before` with some
    changes.

    The files in `gone` were removed, and the files in `changed` have new contents. All other files
    keep their size and digest from the old manifest, so that damage to them can still be detected.

    Raises:
        BadFile: `before` has no manifest, or a damaged one.
    """
    entries = {n: each for n, each in read_manifest(before).items() if n not in gone}
    entries |= {name: _digest(directory / name) for name in changed if name in entries}
    files = {name: {"size": each.size, "sha256": each.sha256} for name, each in entries.items()}
    _write(directory, files)


def _write(directory: Path, files: Mapping[str, Any], boot: str | None = None) -> Path:
    path = directory / MANIFEST
    write_durably(path, _text(files, boot))
    return path


def _text(files: Mapping[str, Any], boot: str | None = None) -> str:
    tree: dict[str, Any] = {"version": VERSION, "files": files}
    if boot is not None:
        tree["boot"] = boot
    return json.dumps(tree, indent=1) + "\n"


def manifest_text(entries: Mapping[str, ManifestEntry]) -> str:
    """Return the text of MANIFEST.json for the given entries. The files need not be on this
    machine.
    """
    files = {name: {"size": each.size, "sha256": each.sha256} for name, each in entries.items()}
    return _text(files)


def read_manifest(directory: Path) -> dict[str, ManifestEntry]:
    """Return the manifest entries of `directory`, keyed by the path of the file relative to it.

    Raises:
        BadFile: the manifest does not exist, is malformed, or lists a path outside the directory.
    """
    path = directory / MANIFEST
    try:
        tree = read_json(path, LARGEST_MANIFEST)
    except FileNotFoundError:
        raise BadFile(
            f"{directory} has no {MANIFEST}: the checkpoint was never finished; take an older one"
        ) from None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON: {error}; copy or download it again") from None
    if not isinstance(tree, dict) or tree.get("version") != VERSION:
        raise BadFile(
            f"{path} is not a manifest of version {VERSION}, the only one that this release "
            "reads; use the release that wrote it, or copy it again"
        )
    files = tree.get("files")
    if not isinstance(files, dict):
        raise BadFile(f"{path} lists no files; copy or download it again")
    is_here = tree.get("boot") is not None and tree["boot"] == _boot()
    return {name: _entry(path, name, value, is_here) for name, value in files.items()}


def stamps_prove_unchanged(directory: Path) -> bool:
    """Return whether the stamps prove that no file was written since its digest was computed.
    Stamps are valid until the next boot of the machine.

    Raises:
        BadFile: the manifest does not exist or cannot be read.
    """
    return all(_is_same(directory / name, e) for name, e in read_manifest(directory).items())


def _is_same(path: Path, entry: ManifestEntry) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    is_file = stat.S_ISREG(status.st_mode) and status.st_size == entry.size
    return is_file and entry.stamp is not None and entry.stamp == _stamp(status)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _boot() -> str | None:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return None


def verify_manifest(
    directory: Path, *, digests: bool = True, only: Callable[[str], bool] = lambda _: True
) -> list[Problem]:
    """Return a problem for each difference between the files and the manifest, in the manifest's
    order.

    A missing or unreadable manifest is a difference too. Files that the manifest does not list are
    ignored, and so are file names for which `only` returns False. With `digests=False`, only
    existence and sizes are compared, and no data is read.
    """
    try:
        entries = {name: entry for name, entry in read_manifest(directory).items() if only(name)}
    except BadFile as error:
        return [Problem(str(error), MANIFEST)]
    if not digests:
        sizes = (_compare(directory, name, entry, False) for name, entry in entries.items())
        return [problem for problem in sizes if problem is not None]
    with ThreadPoolExecutor(_default_threads()) as pool:
        found = pool.map(lambda name: _compare(directory, name, entries[name], True), entries)
        return [problem for problem in found if problem is not None]


def _compare(directory: Path, name: str, entry: ManifestEntry, digests: bool) -> Problem | None:
    path = directory / name
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return Problem(f"{path} is not a regular file", name)
        if status.st_size != entry.size:
            return Problem(
                f"{path} has {status.st_size} bytes, but {MANIFEST} has {entry.size}",
                name,
                is_loss=status.st_size < entry.size,
            )
        if digests and (digest := _digest(path).sha256) != entry.sha256:
            return Problem(
                f"{path} has SHA-256 {digest[:12]}… but {MANIFEST} has {entry.sha256[:12]}…: its "
                "bytes have changed since it was saved",
                name,
                is_loss=True,
            )
    except FileNotFoundError:
        return Problem(f"{path} is missing, but {MANIFEST} lists it", name)
    except OSError as error:
        return Problem(f"{path} cannot be read: {error.strerror}", name)
    return None


def _entry(path: Path, name: str, value: Any, is_here: bool) -> ManifestEntry:
    if not stays_below_root(name):
        raise BadFile(
            f"{path} names {name!r}, which is not a file below its directory; copy or download it "
            "again"
        )
    if isinstance(value, Mapping):
        size, digest = value.get("size"), value.get("sha256")
        if type(size) is int and size >= 0 and isinstance(digest, str):
            found = value.get("stamp")
            stamp = tuple(found) if is_here and isinstance(found, list) else None
            return ManifestEntry(size, digest, stamp)
    raise BadFile(f"{path} gives no size or no sha256 for {name!r}; copy or download it again")


def _regular_files(directory: Path) -> Iterator[str]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(directory).as_posix()
            if not stat.S_ISREG(path.lstat().st_mode):
                raise BadFile(
                    f"{path} is not a regular file, so {MANIFEST} cannot list it; remove it"
                )
            if relative != MANIFEST and not name.startswith(_ABOUT_WRITING):
                yield relative


def _digest(path: Path) -> ManifestEntry:
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(2**20))
    with source_file(path) as source:
        while count := source.read_into(buffer, size):
            digest.update(buffer[:count])
            size += count
    return ManifestEntry(size, digest.hexdigest())


def _default_threads() -> int:
    return min(8, os.cpu_count() or 1)


def write_durably(path: Path, text: str) -> None:
    """Write `text` to a file under a temporary name, flush the file to the disk, and rename it to
    `path`.
    """
    draft = path.with_name(path.name + ".draft")
    with new_text_file(draft) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)
