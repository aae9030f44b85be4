"""An output in an object store. Until it is complete, readers of zerotools refuse it.

A store has no rename, and objects appear one by one. So a run first writes a record of its plan,
then the objects, then the marker that every output has, and at last removes the record:

    .zerotools-writing.json   the planned output, its run, and the complete objects
    model-00001-of-00002.safetensors, ...
    .zerotools-output.json    the output is complete: it names the run

If the destination has a record but no marker of the same run, readers refuse the checkpoint. A run
never replaces an object of another run, so earlier outputs stay complete. The record is also the
journal of the run. The run replaces the record from time to time, on the condition that it is still
the object that this run wrote last. So two runs that write to one prefix notice each other.

`remove_output` first writes such a record with the id of a run that has no marker, so that readers
refuse the output from then on. It removes the marker next, then the other objects, and the record
last. A removal that is killed leaves the same state as a run that is killed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.io.output.journal import refuse_another
from zerotools.io.output.output_marker import MARKER, marked_files
from zerotools.io.output.store_write_record import WRITING, is_written, read_writing
from zerotools.io.stores.store_interface import FarObject, WritableStore
from zerotools.io.stores.store_path import (
    StorePath,
    forget_path,
    put_object,
    remove_objects,
    writable_store,
)
from zerotools.version import version

SCHEMA = "zerotools.writing/1"
_SECONDS_BETWEEN = 2.0
"""The least time between two writes of the record. Stores accept about one change of an object per
second.
"""
_MOST_NAMED = 3


class ForeignObjects(BadRequest):
    """The destination has objects that no run of zerotools has written."""


class ObjectExists(BadRequest):
    """An object that this run is about to write exists already."""


@dataclass(frozen=True)
class FoundOutput:
    """The contents of a destination: the names of its objects, and the record of an unfinished
    output.
    """

    objects: Mapping[str, FarObject]
    record: Mapping[str, Any] | None


def check_far_destination(
    destination: Path, *, resume: bool = False, overwrite: bool = False
) -> FoundOutput:
    """Return the contents of the destination of an output.

    Raises:
        BadRequest: the destination has a checkpoint or another object, or an unfinished output that
            is neither resumed nor overwritten.
        Unsupported: the store is read-only.
    """
    assert isinstance(destination, StorePath)
    writable_store(destination)
    forget_path(destination)
    if destination.is_file():
        raise BadRequest(f"{destination} is an object; name a prefix without objects")
    objects = {}
    for path in destination.below():
        _, key, listing, _ = path.place
        found = listing.object(key)
        if found is not None:
            objects[path.relative_to(destination).as_posix()] = found
    if WRITING not in objects:
        _refuse_complete(destination, objects, overwrite=overwrite)
        return FoundOutput(objects, None)
    if is_written(destination):  # a run was killed before it removed its record
        _refuse_complete(destination, objects, overwrite=overwrite)
    record = read_writing(destination)
    foreign = sorted({*objects} - {*record["files"], WRITING, MARKER})
    if foreign:
        more = f" and {len(foreign) - _MOST_NAMED} more" if foreign[_MOST_NAMED:] else ""
        raise ForeignObjects(
            f"{destination} holds objects that zerotools did not write: "
            f"{', '.join(foreign[:_MOST_NAMED])}{more}; move them elsewhere, or choose another "
            "output"
        )
    if not resume and not overwrite:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(objects[WRITING].modified))
        raise BadRequest(
            f"{destination} is not complete: it has {len(record['done'])} of "
            f"{count_text(len(record['files']), 'file')}, last changed at {when}. If no run writes "
            "there any more, continue with --resume, or start over with --overwrite"
        )
    return FoundOutput(objects, record)


def _refuse_complete(
    destination: Path, objects: Mapping[str, FarObject], *, overwrite: bool
) -> None:
    if not objects:
        return
    why = (
        ", which --overwrite does not replace: a store cannot exchange objects in one step"
        if overwrite
        else ""
    )
    raise BadRequest(
        f"{destination} holds {count_text(len(objects), 'object')}{why}; choose another output, or "
        "remove them"
    )


class FarStaging:
    """An unfinished output in an object store. `files` are the names of all its objects.

    Use it as a context manager, and call `commit` inside the context. Several threads may call
    `add` at once.

    If the run fails, its objects are removed if the store allows it; with `keep_failed` they stay,
    unless the source caused the failure. The objects of a killed or interrupted run stay, so that
    the next run can resume or clear them.
    """

    def __init__(
        self,
        destination: Path,
        command: str,
        identity: Mapping[str, str],
        files: Collection[str],
        *,
        resume: bool,
        overwrite: bool,
        keep_failed: bool = False,
    ) -> None:
        self.destination = destination
        self._keep_failed = keep_failed
        self.run = uuid.uuid4().hex
        self.done: dict[str, Any] = {}
        """The entry of each complete file by name, with its size and its ETag."""
        self.took_over = False
        """True if an earlier run had begun this output."""
        self._command = command
        self._identity = dict(identity)
        self._files = list(files)
        self._resume, self._overwrite = resume, overwrite
        self._store, self._key = writable_store(destination)
        self._lock = Lock()
        self._last_reported_at = 0.0
        self._record: FarObject | None = None
        self._keep = True
        self._is_marked = False

    def __enter__(self) -> FarStaging:
        """Begin the output, or continue the output of an earlier run.

        Raises:
            BadRequest: for the reasons of `check_far_destination`, or because another output was
                begun at the destination.
        """
        found = check_far_destination(
            self.destination, resume=self._resume, overwrite=self._overwrite
        )
        self.took_over = found.record is not None
        if found.record is not None and self._resume:
            before = found.record["identity"]
            refuse_another(self.destination, before, self._identity, "pass --overwrite instead")
            for name, noted in found.record["done"].items():
                there = found.objects.get(name)
                if there and (there.size, there.etag) == (noted["size"], noted["etag"]):
                    self.done[name] = noted
        before = found.objects.get(WRITING)
        if before is not None:  # a listing may lack the version that a condition needs
            before = self._store.head(before.key) or before
        self._write_record(before, new=before is None)
        left = {*found.objects} - {*self.done, WRITING}
        remove_objects(self.destination / name for name in left)
        self._keep = False
        return self

    def add(self, name: str, written: FarObject, noted: Any) -> None:
        """Record that an object is complete. `noted` is a JSON value that is stored with it.

        Raises:
            BadRequest: another run writes to the same destination.
        """
        with self._lock:
            self.done[name] = {"size": written.size, "etag": written.etag, "noted": noted}
            if time.monotonic() - self._last_reported_at >= _SECONDS_BETWEEN:
                self._write_record(self._record)

    def upload(
        self, name: str, pieces: Iterable[bytes], *, size: int, part_bytes: int, parts: int
    ) -> FarObject:
        """Write the object `name` of `size` bytes, in one request if it fits in one part.

        No existing object is replaced, even if the listing was out of date. A small object is
        written on the condition that its name does not exist. Stores have no such condition for an
        upload in parts. So the existence of the object is checked before, and the record excludes
        other runs.

        Raises:
            ObjectExists: another object has this name.
        """
        if size <= part_bytes:
            return self.put(name, b"".join(pieces))
        key = f"{self._key}/{name}"
        if self._store.head(key) is not None:
            raise self._exists_error(name)
        return upload_new(self._store, key, pieces, size, part_bytes, parts)

    def put(self, name: str, data: bytes) -> FarObject:
        """Write a small object that does not exist yet. Raises the errors of `upload`."""
        key = f"{self._key}/{name}"
        try:
            return self._store.put(key, data, new=True)
        except FileExistsError:
            # The reply to an earlier try may have been lost: then the object is this one.
            found = self._store.head(key)
            if found is None or found.size != len(data):
                raise self._exists_error(name) from None
            if found.size and self._store.get(found, 0, found.size) != data:
                raise self._exists_error(name) from None
            return found

    def _exists_error(self, name: str) -> ObjectExists:
        return ObjectExists(
            f"{self.destination / name} already exists, but did not exist when this run began; "
            "choose another output, or remove it"
        )

    def commit(self, marker: bytes) -> None:
        """Complete the output after its last object: write the marker, and remove the record."""
        with self._lock:
            self._write_record(self._record)
            self._is_marked = True  # the marker may exist even if no response comes
            try:
                self.put(MARKER, marker)
            except ObjectExists:
                self._is_marked = False
                raise
            self._keep = True
            self._store.delete([f"{self._key}/{WRITING}"])
        forget_path(self.destination)

    def _write_record(self, before: FarObject | None, *, new: bool = False) -> None:
        tree = {
            "schema": SCHEMA,
            "run": self.run,
            "command": self._command,
            "version": version(),
            "identity": self._identity,
            "files": self._files,
            "done": self.done,
        }
        try:
            self._record = self._store.put(
                f"{self._key}/{WRITING}",
                json.dumps(tree).encode(),
                new=new and before is None,
                replaces=before,
            )
        except FileExistsError:
            found = self._own_record()
            if found is None:
                self._keep = True
                raise BadRequest(
                    f"another run is writing {self.destination}; wait for it, or choose another "
                    "output"
                ) from None
            self._record = found
        self._last_reported_at = time.monotonic()

    def _own_record(self) -> FarObject | None:
        """Return the record in the store if this run has written it, else None.

        If the response to a successful write is lost, the repeated write is refused.
        """
        found = self._store.head(f"{self._key}/{WRITING}")
        if found is None:
            return None
        try:
            tree = json.loads(bytes(self._store.get(found, 0, found.size)))
        except (ValueError, BadFile):
            return None
        return found if isinstance(tree, dict) and tree.get("run") == self.run else None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or self._keep:
            return
        if issubclass(kind, KeyboardInterrupt) or (
            self._keep_failed and not issubclass(kind, BadFile)
        ):
            with suppress(ZerotoolsError):  # the store may be the cause of the failure
                self._write_record(self._record)
            return
        made = [name for name in self._files if name in self.done]
        marker = [MARKER] if self._is_marked else []
        with suppress(ZerotoolsError):  # the error of the run says more, and the record stays
            remove_objects(self.destination / name for name in (*marker, *made))
            remove_objects([self.destination / WRITING])


def upload_new(
    store: WritableStore, key: str, pieces: Iterable[bytes], size: int, part_bytes: int, parts: int
) -> FarObject:
    """Write a new object of `size` bytes, as `WritableStore.upload` does. If only the last response
    is lost, the upload still succeeds."""
    try:
        return store.upload(key, pieces, part_bytes, parts)
    except ZerotoolsError:
        # The reply to the last request may have been lost: then the object is this one.
        with suppress(ZerotoolsError):
            found = store.head(key)
            if found is not None and found.size == size:
                return found
        raise


def remove_output(destination: StorePath, *, leave_foreign: bool = False) -> None:
    """Remove the objects of the complete or unfinished output at `destination`.

    With `leave_foreign`, the destination may also have objects that zerotools did not write; these
    are kept.

    Raises:
        ForeignObjects: the destination has objects that zerotools did not write, or has neither a
            marker nor a record. Nothing is removed.
        BadRequest: the list of the output's objects cannot be read.
    """
    forget_path(destination)
    names = {path.relative_to(destination).as_posix() for path in destination.below()}
    if not names:
        return
    if MARKER not in names and WRITING not in names:
        raise ForeignObjects(
            f"{destination} was not written by zerotools: it has neither {MARKER} nor {WRITING}. "
            "Its objects are kept"
        )
    own = marked_files(destination) if MARKER in names else set[str]()
    if WRITING in names:
        own |= {*read_writing(destination)["files"]}
    foreign = sorted(names - own - {MARKER, WRITING})
    if foreign and not leave_foreign:
        raise ForeignObjects(
            f"{destination} holds objects that zerotools did not write, such as {foreign[0]}; "
            "move them elsewhere: no objects were removed"
        )
    files = sorted(names & own)
    tree = {
        "schema": SCHEMA,
        "run": uuid.uuid4().hex,
        "command": "remove",
        "version": version(),
        "identity": {},
        "files": files,
        "done": {},
    }
    put_object(destination / WRITING, json.dumps(tree).encode())
    remove_objects([destination / MARKER])
    remove_objects(destination / name for name in files)
    remove_objects([destination / WRITING])
