"""Send one checkpoint of a job unchanged from the disk to an object store.

The copy is written like every output in a store (`io.output.write_to_store`): first a record, then
the files, then the manifest and the marker. The files that identify a checkpoint to readers are
sent after the other files. Every byte is compared with the manifest while it is sent. So if the
disk has lost data since the save, the result does not count as a copy. The files of an interrupted
transfer are kept, and the next attempt continues from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Event

from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats import FORMATS
from zerotools.io.files.regular_files import read_regular, source_file
from zerotools.io.output.output_marker import MARKER, marker_text
from zerotools.io.output.store_write_record import WRITING, read_writing
from zerotools.io.output.write_to_store import FarStaging, remove_output
from zerotools.io.stores.store_interface import FarObject
from zerotools.io.stores.store_path import StorePath, forget_path, remove_objects
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.mirroring.list_and_remove_copies import is_copy
from zerotools.ops.store_output.upload_memory import UploadMemory
from zerotools.runs.manifest import LARGEST_MANIFEST, MANIFEST, ManifestEntry, read_manifest
from zerotools.runs.thinning_record import is_thinned
from zerotools.runs.training_record import RECORD

_PIECE = 2**20
_SIGNS = {RECORD, *(sign for form in FORMATS.values() for sign in form.signs)}


@dataclass(frozen=True, slots=True)
class SentCopy:
    """The numbers of bytes and files that this attempt sent, and the number of files (`kept_files`)
    that an earlier attempt had sent."""

    sent_bytes: int
    sent_files: int
    kept_files: int


class _Stopped(Exception):
    """The transfer of this file was stopped because the transfer of another file failed."""


def send_copy(
    directory: Path,
    destination: StorePath,
    *,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
    permit: Callable[[], None] = lambda: None,
) -> SentCopy | None:
    """Copy the checkpoint in `directory` to `destination`. Return None if `destination` is already
    a copy. Objects of another checkpoint of the run at `destination` are removed first.

    `permit` is called when only the marker is missing. It raises an error if the copy must not
    appear.

    Raises:
        BadFile: the checkpoint differs from its manifest, or was deleted or thinned during the
            transfer.
        ForeignObjects: the destination has objects that zerotools did not write.
        BadRequest: the store denies access.
        HostUnreachable: the store does not answer.
    """
    entries = read_manifest(directory)
    try:
        manifest = read_regular(directory / MANIFEST, LARGEST_MANIFEST, is_source=False)
    except OSError as error:
        raise BadFile(f"{directory / MANIFEST} cannot be read: {error.strerror}") from None
    if is_thinned(directory):  # else it would replace a whole copy
        raise BadFile(f"{directory} was thinned, and is not uploaded")
    made_of = hashlib.sha256(manifest).hexdigest()
    forget_path(destination)
    if is_copy(destination, made_of):
        if (destination / WRITING).is_file():  # its sender was killed before its last request
            remove_objects([destination / WRITING])
        return None
    identity = {"manifest": made_of}
    resume = _has_begun(destination, identity)
    if not resume:
        remove_output(destination)
    names = [*entries, MANIFEST]
    memory = UploadMemory.of(budget, len(names))
    staging = FarStaging(
        destination, "upload", identity, names, resume=resume, overwrite=False, keep_failed=True
    )
    with staging:
        kept = len(staging.done)
        sending = _Sending(directory, entries, memory, staging, on_bytes)
        sending.run()
        staging.add(MANIFEST, staging.put(MANIFEST, manifest), {})
        permit()
        staging.commit(_marker(staging, made_of))
    return SentCopy(sending.sent_bytes, len(names) - kept, kept)


def _has_begun(destination: StorePath, identity: dict[str, str]) -> bool:
    """Return whether an interrupted transfer of the same checkpoint can be continued."""
    if not (destination / WRITING).is_file() or (destination / MARKER).is_file():
        return False
    try:
        return bool(read_writing(destination)["identity"] == identity)
    except BadRequest:
        return False


def _marker(staging: FarStaging, made_of: str) -> bytes:
    files = {n: {"size": d["size"], "etag": d["etag"]} for n, d in sorted(staging.done.items())}
    more = {"run": staging.run, "made_of": made_of}
    return marker_text("upload", files, None, more).encode()


class _Sending:
    """The transfer of one checkpoint's files."""

    def __init__(
        self,
        directory: Path,
        entries: dict[str, ManifestEntry],
        memory: UploadMemory,
        staging: FarStaging,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._directory = directory
        self._entries = entries
        self._memory = memory
        self._staging = staging
        self._on_bytes = on_bytes
        self._stopped = Event()
        self.sent_bytes = 0

    def run(self) -> None:
        left = [name for name in self._entries if name not in self._staging.done]
        last = [name for name in left if PurePosixPath(name).name in _SIGNS]
        first = [name for name in left if name not in last]
        with ThreadPoolExecutor(self._memory.files, thread_name_prefix="upload") as pool:
            try:
                for some in (first, last):
                    sending = [pool.submit(self._send, name) for name in some]
                    ended, _ = wait(sending, return_when=FIRST_EXCEPTION)
                    for each in ended:
                        self.sent_bytes += each.result().size
            except BaseException:  # raised again, when all have come to their ends
                self._stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _send(self, name: str) -> FarObject:
        size = self._entries[name].size
        written = self._staging.upload(
            name,
            self._pieces(name),
            size=size,
            part_bytes=self._memory.part_bytes(size),
            parts=self._memory.parallel(size),
        )
        self._staging.add(name, written, {})
        return written

    def _pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file, and check them against the file's SHA-256 in the manifest."""
        path, entry = self._directory / name, self._entries[name]
        digest, at = hashlib.sha256(), 0
        try:
            with source_file(path, is_source=False) as source:
                while piece := source.read(_PIECE, at):
                    if self._stopped.is_set():
                        raise _Stopped
                    digest.update(piece)
                    at += len(piece)
                    if at > entry.size:
                        break
                    yield piece
                    self._on_bytes(len(piece))
        except OSError as error:
            raise BadFile(f"{path} cannot be read: {error.strerror}") from None
        if (at, digest.hexdigest()) != (entry.size, entry.sha256):
            raise BadFile(
                f"{path} differs from its entry in {MANIFEST} ({entry.size} bytes, SHA-256 "
                f"{entry.sha256[:12]}…): its bytes have changed since it was saved, so it is not "
                "uploaded"
            )
