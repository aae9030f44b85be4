"""Apply deltas to a model: each is checked before anything is written, and each block before and
after its change.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np

from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.open_source import RemotePath
from zerotools.io.numeric.dtype_casts import as_type, numpy_dtype
from zerotools.io.output.marker import MARKER, check_replaceable, write_marker
from zerotools.io.output.staging import Staging
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.delta.block_codec import Compression, DeltaBlockKind, Elements, apply_block
from zerotools.ops.delta.delta_file import DeltaFile, DeltaTensor, StoredBlock, digest_of
from zerotools.ops.delta.make_delta import in_order
from zerotools.ops.delta.models import in_layout
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.ops.verification.digest_manifest import sidecar_of_path
from zerotools.runs.file_names import MANIFEST

COMMAND = "apply"
_INDEX = ".index.json"
"""The end of the name of an index, which maps tensors to files of weights."""


@dataclass(frozen=True)
class ApplyReport:
    """The result of applying deltas: the size of the model, its tensors, and the deltas' size."""

    nbytes: int
    tensors: int
    files: int


@contextmanager
def opened_deltas(paths: Sequence[Path]) -> Iterator[list[DeltaFile]]:
    """Return a context with the deltas at `paths`, checked as a whole; `-` is the standard input.

    Raises:
        BadRequest: one does not exist, or they do not follow each other.
        BadFile: one is not a delta, cut or damaged.
        Unsupported: one has another version.
    """
    with ExitStack() as stack:
        yield [DeltaFile(path, stack.enter_context(_opened(path))) for path in paths]


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        with tempfile.TemporaryFile() as spool, open(0, "rb", closefd=False) as pipe:
            shutil.copyfileobj(pipe, spool, 1 << 20)
            spool.seek(0)
            yield spool
        return
    if isinstance(path, RemotePath):
        raise BadRequest(f"{path} is in an object store; pipe it to zerotools apply A - OUT")
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        raise BadRequest(f"{path} does not exist") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    with stream:
        yield stream


class DeltaChain:
    """The model that deltas make of the model `a`, one after the other."""

    def __init__(self, a: Conversion, deltas: Sequence[DeltaFile], budget: MemoryBudget) -> None:
        """Check that the model has the tensors of the first delta. Raises BadRequest."""
        self._a = a
        self._deltas = deltas
        self._budget = budget
        self._compression = Compression()
        self._lock = Lock()
        self._plain: dict[Path, bytes] = {}
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
        """Raise BadFile if a file of the model has changed since it was first read."""
        self._base.check_all()

    def block(self, tensor: DeltaTensor, number: int) -> Elements:
        """Return the bytes of block `number` of a tensor of the last delta.

        Raises:
            BadRequest: the model, or the result of a delta, is not what the next was made from.
            BadFile: a delta does not fit its own digests.
        """
        return self._after(len(self._deltas) - 1, tensor, number)

    def _after(self, place: int, tensor: DeltaTensor, number: int) -> Elements:
        delta = self._deltas[place]
        with self._lock:
            stored = delta.block(tensor.name, number)
        before = None
        if stored.block.kind != DeltaBlockKind.NEW:
            before = self._before(place, tensor, number)
            if digest_of(before) != stored.before:
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
                f"{delta.path}: block {number} of {tensor.name} has another digest after its "
                "change than was written; make the delta again"
            )
        return after

    def _before(self, place: int, tensor: DeltaTensor, number: int) -> Elements:
        if place == 0:
            if tensor.name not in self._known:
                raise BadRequest(
                    f"{self._a.source.origin.path} has no tensor {tensor.name}, which "
                    f"{self._deltas[0].path} changes; apply it to {self._deltas[0].header.a}"
                )
            return b"".join(self._base.read(tensor.file, *tensor.block(number)))
        own = self._deltas[place - 1].tensors.get(tensor.name)
        if own is None or own.shape != tensor.shape:
            raise BadRequest(
                f"{self._deltas[place].path} does not follow {self._deltas[place - 1].path}: "
                f"{tensor.name} is not the same tensor in both; check the order of the deltas"
            )
        found = self._after(place - 1, own, number)
        return _cast(found, own.dtype, tensor.dtype)

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
        """Yield offset and bytes of the parts of a file that belong to no tensor.

        Raises BadRequest if the file is that of the model, and differs there.
        """
        file = self.header.files
        place = len(self._deltas) - 1
        known = next(each for each in file if each.name == name)
        while known.digest is not None and place and name in self._deltas[place - 1].files:
            place -= 1
            known = self._deltas[place].files[name]
        if known.digest is None:
            yield from self._stored_parts(self._deltas[place], name)
            return
        data = b""
        if name in self._a.target.files:
            with ByteSource(self._a, self._budget, strict=False) as own:
                data = b"".join(own.read(name, 0, self._a.target.files[name].size))
        if digest_of(data).hex() != known.digest:
            raise BadRequest(
                f"{self._a.source.origin.path} has another {name} than the model that "
                f"{self._deltas[0].path} was made from; apply it to {self._deltas[0].header.a}"
            )
        yield 0, data

    def _stored_parts(self, delta: DeltaFile, name: str) -> Iterator[tuple[int, bytes]]:
        stored = [each for each in delta.header.files if each.digest is None]
        if delta.path not in self._plain:
            length = sum(size for each in stored for _, size in each.parts)
            self._plain[delta.path] = self._compression.unpack(delta.plain, length)
        plain, at = self._plain[delta.path], 0
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

    With `in_place`, the model that `destination` contains, it is replaced in one step; its files
    without weights stay unless the deltas replace them. The destination is complete when this
    returns, and unchanged when it raises.

    Raises:
        BadRequest: the destination exists, or a delta does not fit. BadFile: a delta or the model
        is damaged.
    """
    header = chain.header
    replaced: Callable[[Path], None] | None = None
    if in_place is not None:
        replaced = _check_in_place
    elif overwrite:
        replaced = partial(check_replaceable, command=COMMAND)
    with Staging(destination, check_replaced=replaced) as staging, chain:
        directory = staging.directory
        if in_place is not None:
            _carry_others(in_place, destination, directory, {file.name for file in header.files})
        flags = os.O_RDWR
        for file in header.files:
            path = directory / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as stream:
                stream.truncate(file.size)
                for offset, data in chain.plain_bytes(file.name):
                    stream.seek(offset)
                    stream.write(data)
        with OpenFiles(directory, flags) as output:

            def work(piece: tuple[DeltaTensor, int]) -> int:
                tensor, number = piece
                data = chain.block(tensor, number)
                output.write_at(tensor.file, tensor.block(number)[0], data)
                return len(data)

            pieces = (
                (tensor, number) for tensor in header.tensors for number in range(tensor.blocks)
            )
            for nbytes in in_order(pieces, work, budget.workers):
                on_bytes(nbytes)
            for file in header.files:
                output.sync(file.name)
        chain.check_sources()
        write_marker(directory, COMMAND)
        staging.commit()
    if in_place is not None:  # a manifest next to the directory has the digests of the old files
        sidecar_of_path(destination).unlink(missing_ok=True)
    return ApplyReport(
        sum(file.size for file in header.files), len(header.tensors), len(header.files)
    )


def _check_in_place(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        raise BadRequest(f"{path} is not a directory, so it cannot be changed in place")


def _carry_others(model: Conversion, origin: Path, directory: Path, written: set[str]) -> None:
    """Link the files of `origin` that are neither weights nor written by the deltas."""
    gone = {*model.source.files, *written, MARKER, MANIFEST}
    for entry in origin.iterdir():
        if entry.name in gone or entry.name.endswith(_INDEX):
            continue
        path = directory / entry.name
        if entry.is_symlink():
            path.symlink_to(entry.readlink())
        elif entry.is_dir():
            shutil.copytree(entry, path, symlinks=True, copy_function=_link)
        else:
            _link(entry, path)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
