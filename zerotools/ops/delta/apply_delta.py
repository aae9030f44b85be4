"""Apply deltas to a model. All deltas are checked before anything is written. The elements of each
block are checked before and after they are changed."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
import xxhash

from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.open_source import RemotePath
from zerotools.io.files.ownership import copy_access
from zerotools.io.numeric.dtype_casts import as_type, numpy_dtype
from zerotools.io.output.output_marker import MARKER, check_replaceable, write_marker
from zerotools.io.output.staging import Staging
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.delta.block_codec import Compression, Elements, apply_block
from zerotools.ops.delta.delta_file import DeltaFile, DeltaTensor, StoredBlock, digest_of
from zerotools.ops.delta.make_delta import block_workers, in_order
from zerotools.ops.delta.weights_of_model import in_layout, is_model_directory
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.thinning.directory_snapshot import Entries
from zerotools.ops.verification.digest_manifest import sidecar_of_path
from zerotools.runs.file_names import MANIFEST

COMMAND = "apply"
_INPUT = Path("the standard input")
"""The name of the standard input in messages."""
_INDEX = ".index.json"
"""The end of the file name of an index. An index lists the file of each tensor."""


@dataclass(frozen=True)
class ApplyReport:
    """The result of applying deltas: the model's size in bytes, and its numbers of tensors and
    files."""

    nbytes: int
    tensors: int
    files: int


@contextmanager
def opened_deltas(given: Sequence[Path | BinaryIO]) -> Iterator[list[DeltaFile]]:
    """Return a context with the deltas that are `given` by paths or as file objects, which are
    checked completely. `-` stands for the standard input. A file object is read from its current
    position, and stays open.

    Raises:
        BadRequest: a file does not exist, or a delta was not made from the result of the delta
            before it.
        BadFile: a file is not a delta, or is truncated or damaged.
        Unsupported: a delta has a version that zerotools cannot read.
    """
    with ExitStack() as stack:
        yield [DeltaFile(_name_of(each), stack.enter_context(_opened(each))) for each in given]


def _name_of(given: Path | BinaryIO) -> Path:
    """Return the name of a delta in messages."""
    if isinstance(given, Path):
        return _INPUT if str(given) == "-" else given
    name = getattr(given, "name", None)
    return Path(name if isinstance(name, str) else "the file object")


@contextmanager
def _opened(given: Path | BinaryIO) -> Iterator[BinaryIO]:
    if isinstance(given, Path):
        with _opened_path(given) as stream:
            yield stream
        return
    if isinstance(given, io.BytesIO) and given.tell() == 0:
        yield given
        return
    with _spooled(given) as spool:
        yield spool


@contextmanager
def _spooled(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Return a context with a temporary file of the rest of `stream`."""
    with tempfile.TemporaryFile() as spool:
        shutil.copyfileobj(stream, spool, 1 << 22)
        spool.seek(0)
        yield spool


@contextmanager
def _opened_path(path: Path) -> Iterator[BinaryIO]:
    is_far = isinstance(path, RemotePath)
    is_input = str(path) == "-"
    try:
        if isinstance(path, RemotePath):
            stream = path.open_source().stream()
        else:
            stream = os.fdopen(0, "rb", closefd=False) if is_input else path.open("rb")
    except FileNotFoundError:
        raise BadRequest(f"{path} does not exist") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    with stream:
        if not (is_input or is_far) and stream.seekable():
            yield stream
            return
        with _spooled(stream) as spool:
            yield spool


class DeltaChain:
    """The model that results if several deltas are applied to the model `a`, one after the
    other."""

    def __init__(self, a: Conversion, deltas: Sequence[DeltaFile], budget: MemoryBudget) -> None:
        """Raise BadRequest if the model does not have the tensors of the first delta."""
        self._a = a
        self._deltas = deltas
        self._budget = budget
        self._compression = Compression()
        self._lock = Lock()
        self._plain: dict[DeltaFile, bytes] = {}
        first = deltas[0].header
        sizes = {file.name: file.size for file in first.files}
        base, self._known = in_layout(a, first.tensors, sizes)
        self._base = ByteSource(base, budget, strict=False)
        self.header = deltas[-1].header

    def __enter__(self) -> DeltaChain:
        self._base.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._base.__exit__(*error)

    def check_sources(self) -> None:
        """Raise BadFile if a file of the model, or a delta, has changed since it was first read."""
        self._base.check_all()
        for delta in self._deltas:
            delta.check_unchanged()

    def block(self, tensor: DeltaTensor, number: int) -> Elements:
        """Return the bytes of block `number` of a tensor of the last delta.

        Raises:
            BadRequest: a delta was not made from this model, or not from the result of the delta
                before it.
            BadFile: the result of a delta does not have the digest that the delta records.
        """
        steps = [tensor]  # of this delta and of those before it, back to the first that has a base
        place = len(self._deltas) - 1
        while place and self._deltas[place].needs_base(steps[-1].name, number):
            steps.append(self._step_before(place, steps[-1]))
            place -= 1
        before: Elements | None = None
        if self._deltas[place].needs_base(steps[-1].name, number):
            before = self._of_model(steps[-1], number)
        found = self._after(place, steps.pop(), number, before)
        while steps:
            place += 1
            source = self._deltas[place - 1].tensors[steps[-1].name].dtype
            before = _cast(found, source, steps[-1].dtype)
            found = self._after(place, steps.pop(), number, before)
        return found

    def _after(
        self, place: int, tensor: DeltaTensor, number: int, before: Elements | None
    ) -> Elements:
        delta = self._deltas[place]
        with self._lock:
            stored = delta.block(tensor.name, number)
        if before is not None and digest_of(before) != stored.before:
            raise BadRequest(self._why_other(place, tensor, number, before, stored))
        size = tensor.dtype.itemsize
        try:
            after = apply_block(before, stored.block, size, self._compression.unpack)
        except BadFile as error:
            raise BadFile(f"{delta.path}: {tensor.name}, block {number}: {error}") from None
        begin, end = tensor.block(number)
        is_whole = len(after) == end - begin
        if not is_whole or (after is not before and digest_of(after) != stored.after):
            raise BadFile(
                f"{delta.path}: after its change, block {number} of {tensor.name} has another "
                "digest than the delta records; make the delta again"
            )
        return after

    def _of_model(self, tensor: DeltaTensor, number: int) -> Elements:
        if tensor.name not in self._known:
            raise BadRequest(
                f"{self._a.source.origin.path} has no tensor {tensor.name}, which "
                f"{self._deltas[0].path} changes; apply it to {self._deltas[0].header.a}"
            )
        return b"".join(self._base.read(tensor.file, *tensor.block(number)))

    def _step_before(self, place: int, tensor: DeltaTensor) -> DeltaTensor:
        """Return the tensor with the name of `tensor` in the delta before delta number `place`.
        Raises BadRequest if that delta lacks the tensor or has it in another shape.
        """
        own = self._deltas[place - 1].tensors.get(tensor.name)
        if own is None or own.shape != tensor.shape:
            raise BadRequest(
                f"{self._deltas[place].path} does not follow {self._deltas[place - 1].path}: "
                f"{tensor.name} is not the same tensor in both; check the order of the deltas"
            )
        return own

    def _why_other(
        self, place: int, tensor: DeltaTensor, number: int, before: Elements, stored: StoredBlock
    ) -> str:
        path = self._deltas[place].path
        what = self._deltas[place - 1].path if place else self._a.source.origin.path
        if digest_of(before) == stored.after:
            return f"{path} was applied to {what} before: {tensor.name} has its result already"
        made = self._deltas[place].header.a
        return (
            f"{path} was made from another model than {what}: {tensor.name} differs in its block "
            f"{number}; apply it to {made}"
        )

    def plain_bytes(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield the parts of a file that belong to no tensor, each as its offset and its bytes.

        A delta does not store a file that its two models have in common; then the bytes come from
        an earlier delta or from the model. Raises BadRequest, at the latest after the last part, if
        these bytes do not have the digest that the delta records.
        """
        place = len(self._deltas) - 1
        last = known = self._deltas[place].files[name]
        if last.digest is None:
            yield from self._stored_parts(self._deltas[place], name)
            return
        while known.digest is not None and place and name in self._deltas[place - 1].files:
            place -= 1
            known = self._deltas[place].files[name]
        if known.digest is None:
            owner: Path = self._deltas[place].path
            stored = self._stored_parts(self._deltas[place], name)
            parts: Iterator[bytes] = (part for _, part in stored)
            size, place = known.size, place + 1
        else:
            owner = self._a.source.origin.path
            own = self._a.target.files.get(name)
            size = own.size if own is not None else 0
            parts = self._own_parts(name, size) if own is not None else iter(())
        for delta in self._deltas[place:]:
            if delta.files[name].size != size:
                raise BadRequest(self._why_other_file(owner, name, delta))
        found, at = xxhash.xxh3_128(), 0
        for part in parts:
            found.update(part)
            yield at, part
            at += len(part)
        for delta in self._deltas[place:]:
            if delta.files[name].digest != found.hexdigest():
                raise BadRequest(self._why_other_file(owner, name, delta))

    def _own_parts(self, name: str, size: int) -> Iterator[bytes]:
        with ByteSource(self._a, self._budget, strict=False) as own:
            yield from own.read(name, 0, size)

    def _why_other_file(self, owner: Path, name: str, delta: DeltaFile) -> str:
        return (
            f"{owner} has another {name} than the model that {delta.path} was made from; apply it "
            f"to {delta.header.a}"
        )

    def _stored_parts(self, delta: DeltaFile, name: str) -> Iterator[tuple[int, bytes]]:
        stored = [each for each in delta.header.files if each.digest is None]
        if delta not in self._plain:
            length = sum(size for each in stored for _, size in each.parts)
            try:
                self._plain[delta] = self._compression.unpack(delta.plain, length)
            except BadFile as error:
                raise BadFile(f"{delta.path}: files without tensors: {error}") from None
        plain, at = self._plain[delta], 0
        for each in stored:
            for offset, size in each.parts:
                if each.name == name:
                    yield offset, plain[at : at + size]
                at += size


def _cast(data: Elements, source: DType, target: DType) -> Elements:
    if source == target:
        return data
    return as_type(np.frombuffer(data, numpy_dtype(source)), target).tobytes()


def apply_deltas(
    chain: DeltaChain,
    destination: Path,
    budget: MemoryBudget,
    *,
    overwrite: bool = False,
    in_place: Conversion | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> ApplyReport:
    """Write the model that `chain` makes into the directory `destination`.

    With `in_place`, `destination` already contains the model that the deltas change. The new model
    replaces it in one step, and its files without weights are kept unless the deltas replace them.
    The destination is complete if this function returns, and unchanged if it raises an error.

    Raises:
        BadRequest: the destination exists, or a delta was not made from this model.
        BadFile: a delta or the model is damaged, or its files changed meanwhile.
    """
    header = chain.header
    replaced: Callable[[Path], None] | None = None
    others: Entries | None = None
    if in_place is not None:
        others = _entries_in_place(in_place, destination)
        replaced = others.check_unchanged
    elif overwrite:
        replaced = partial(check_replaceable, command=COMMAND)
    with Staging(destination, check_replaced=replaced) as staging, chain:
        directory = staging.directory
        for file in header.files:
            try:
                _write_plain(directory / file.name, chain.plain_bytes(file.name), file.size)
            except OSError as error:
                path = destination / file.name
                raise OSError(error.errno, error.strerror, str(path)) from None
        with OpenFiles(directory, os.O_RDWR) as output:

            def work(piece: tuple[DeltaTensor, int]) -> int:
                tensor, number = piece
                data = chain.block(tensor, number)
                output.write_at(tensor.file, tensor.block(number)[0], data)
                return len(data)

            pieces = (
                (tensor, number) for tensor in header.tensors for number in range(tensor.blocks)
            )
            for nbytes in in_order(pieces, work, block_workers(budget)):
                on_bytes(nbytes)
            for file in header.files:
                output.sync(file.name)
        chain.check_sources()
        write_marker(directory, COMMAND)
        if in_place is not None and others is not None:
            _carry_others(
                in_place, others, directory, {MARKER, *(file.name for file in header.files)}
            )
        staging.commit()
    if in_place is not None:  # a manifest next to the directory has the digests of the old files
        sidecar_of_path(destination).unlink(missing_ok=True)
    return ApplyReport(
        sum(file.size for file in header.files), len(header.tensors), len(header.files)
    )


def _write_plain(path: Path, parts: Iterable[tuple[int, bytes]], size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        for offset, data in parts:
            stream.seek(offset)
            stream.write(data)
        stream.truncate(size)


def _entries_in_place(model: Conversion, path: Path) -> Entries:
    """Return the files and directories in `path`, the directory that contains `model`.

    Raises BadRequest if `path` is not a model directory, because a change in place would lose the
    other state in it.
    """
    if path.is_symlink():
        raise BadRequest(
            f"{path} is a symbolic link; name its target, {path.resolve()}, so that it is clear "
            "which model is changed"
        )
    if not path.is_dir():
        raise BadRequest(f"{path} is not a directory, so it cannot be changed in place")
    if not model.table[model.source.origin.format].is_exported:
        raise BadRequest(
            f"{path} is not a directory of safetensors, so a change in place would lose its "
            "optimizer state; name an output directory"
        )
    if not is_model_directory(path, model.table):
        raise BadRequest(
            f"{path} has other files of weights than safetensors, which a change in place would "
            "replace; name an output directory"
        )
    try:
        return Entries.of_any(path)
    except OSError as error:
        raise BadRequest(f"{error.filename} cannot be read: {error.strerror}") from None


def _carry_others(model: Conversion, others: Entries, directory: Path, written: set[str]) -> None:
    """Link those files of `others` into `directory` that are neither weights nor written by the
    deltas. Give the new files and directories the owners and permissions of the old ones."""
    gone = {*model.source.files, *written, MANIFEST}
    try:
        for name in others.directories():
            (directory / name).mkdir(exist_ok=True)
        for name in others.files():
            if name in gone or ("/" not in name and name.endswith(_INDEX)):
                continue
            entry, path = others.root / name, directory / name
            if entry.is_symlink():
                path.symlink_to(entry.readlink())
            else:
                _link(entry, path)
        for name in reversed(others.directories()):
            copy_access(others.status[name], directory / name)
            shutil.copystat(others.root / name, directory / name)
    except FileExistsError as error:
        raise BadRequest(
            f"{error.filename2 or error.filename} is a file in one of the two directories and a "
            f"directory in the other; move the one in {others.root} elsewhere"
        ) from None
    weights = next(iter(model.source.files))
    for name in written:
        old = others.root / name  # a link, such as those of the Hub's cache, has the file's access
        copy_access((old if old.is_file() else others.root / weights).stat(), directory / name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
        copy_access(source.stat(), target)
        with target.open("rb") as copy:
            os.fsync(copy.fileno())
