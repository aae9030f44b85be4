"""The model that several deltas make from another one. Each delta is checked when it is opened, and
each block of elements before and after its change.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
import xxhash

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import FilePlan, Target
from zerotools.io.files.open_source import RemotePath
from zerotools.io.numeric.dtype_casts import as_type, numpy_dtype
from zerotools.io.output.advice_to_continue import advice_to_continue
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.delta.block_codec import (
    BlockBuffers,
    Compression,
    DeltaBlockKind,
    Elements,
    apply_block,
)
from zerotools.ops.delta.delta_file import DeltaFile, DeltaTensor, StoredBlock, digest_of
from zerotools.ops.delta.make_delta import temporary_file
from zerotools.ops.delta.models_of_delta import in_layout
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.version import version

COMMAND = "apply"
_INPUT = Path("the standard input")
"""The name of the standard input in messages."""
_PIECE = 1 << 20
"""The most bytes without tensors that are returned at a time."""


@dataclass(frozen=True, kw_only=True)
class ApplyRequest:
    """Options for writing the result of a chain.

    Attributes:
        budget: the memory and the threads.
        overwrite: replace an earlier output of `apply` at the destination.
        resume: keep the files that an interrupted run with the same deltas completed.
        verify: read the output back, and compare it with the digests in the last delta.
        on_bytes: called with the number of bytes of tensors that were made since its last call.
    """

    budget: MemoryBudget
    overwrite: bool = False
    resume: bool = False
    verify: bool = False
    on_bytes: Callable[[int], None] = lambda _: None


@contextmanager
def opened_deltas(given: Sequence[Path | BinaryIO]) -> Iterator[list[DeltaFile]]:
    """Return a context with the deltas `given` as paths or as file objects, which are checked
    completely. `-` stands for the standard input. A file object is read from its current position,
    and stays open.

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
    """Copy the rest of `stream` to a temporary file, and yield this file at its beginning."""
    with temporary_file() as spool:
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
        advice = None if is_far else advice_to_continue(partial_of(path))
        more = "" if advice is None else f", and {partial_of(path)} {advice}"
        raise BadRequest(f"{path} does not exist{more}") from None
    except IsADirectoryError:
        advice = advice_to_continue(path) or "is a directory, and not a delta"
        raise BadFile(f"{path} {advice}") from None
    except OSError as error:
        raise BadFile(f"{_name_of(path)} cannot be read: {error.strerror}") from None
    with stream:
        if not (is_input or is_far) and stream.seekable():
            yield stream
            return
        with _spooled(stream) as spool:
            yield spool


class DeltaChain:
    """The model that results if `deltas` are applied in order to the model `a`."""

    def __init__(self, a: Conversion, deltas: Sequence[DeltaFile], budget: MemoryBudget) -> None:
        """Raise BadRequest if the model has none of the tensors of the first delta, or one of them
        in another shape, or another file than a delta needs."""
        self._a = a
        self._deltas = deltas
        self._budget = budget
        self._compression = Compression()
        self._buffers = BlockBuffers()
        self._lock = Lock()
        self._plain: dict[DeltaFile, bytes] = {}
        first = deltas[0].header
        sizes = {file.name: file.size for file in first.files}
        base, self._known = in_layout(a, first.tensors, sizes)
        self._base = ByteSource(base, budget, strict=False)
        self.header = deltas[-1].header
        for file in self.header.files:
            if file.digest is not None:
                self._holder_of(file.name)

    @property
    def identity(self) -> dict[str, str]:
        """The inputs of the result. The model `a` need not be among them, because the deltas have
        the digests of all bytes of the result."""
        digest = hashlib.sha256(b"".join(delta.digest for delta in self._deltas))
        return {"deltas": digest.hexdigest(), "version of zerotools": version()}

    def conversion_to(self, destination: Path) -> Conversion:
        """Return the plan that writes the tensors of the result to `destination`. `plain_bytes`
        yields the other bytes of its files."""
        tensors = {}
        for each in self.header.tensors:
            chunk = Chunk(Box.whole(each.shape), each.file, each.offset)
            tensors[Key(each.name, each.role)] = Tensor(each.dtype, each.shape, (chunk,))
        sizes = {file.name: file.size for file in self.header.files}
        origin = self._a.target.checkpoint.origin
        whole = Checkpoint(destination, tensors, origin, files=sizes)
        target = Target(whole, {name: FilePlan(size) for name, size in sizes.items()})
        return replace(self._a, target=target, command=COMMAND)

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

    def block(self, tensor: DeltaTensor, number: int) -> memoryview:
        """Return the bytes of block `number` of `tensor`, which is in the last delta. The bytes are
        valid until this thread calls the method again.

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
        before: memoryview | None = None
        if self._deltas[place].needs_base(steps[-1].name, number):
            before = self._of_model(steps[-1], number)
        found = self._after(place, steps.pop(), number, before)
        while steps:
            place += 1
            source = self._deltas[place - 1].tensors[steps[-1].name].dtype
            before = _cast(found, source, steps[-1].dtype)
            found = self._after(place, steps.pop(), number, before)
        return found

    def digest_after(self, tensor: DeltaTensor, number: int) -> bytes:
        """Return the digest that block `number` of `tensor` has in the result."""
        with self._lock:
            return self._deltas[-1].block(tensor.name, number).after

    def _after(
        self, place: int, tensor: DeltaTensor, number: int, before: memoryview | None
    ) -> memoryview:
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
        is_same = stored.block.kind == DeltaBlockKind.SAME
        if not is_whole or (not is_same and digest_of(after) != stored.after):
            raise BadFile(
                f"{delta.path}: after its change, block {number} of {tensor.name} has another "
                "digest than the delta records; make the delta again"
            )
        return after

    def _of_model(self, tensor: DeltaTensor, number: int) -> memoryview:
        if tensor.name not in self._known:
            raise BadRequest(
                f"{self._a.source.origin.path} has no tensor {tensor.name}, which "
                f"{self._deltas[0].path} changes; apply it to {self._deltas[0].header.a}"
            )
        begin, end = tensor.block(number)
        found = self._buffers.take("elements", end - begin)
        self._base.read_elements(tensor.file, begin, found)
        return found

    def _step_before(self, place: int, tensor: DeltaTensor) -> DeltaTensor:
        """Return the tensor with the name of `tensor` in the delta before number `place`. Raises
        BadRequest if that delta lacks it or has it in another shape."""
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
        """Yield the parts of a file that belong to no tensor, in order, each as its offset and its
        bytes.

        A delta does not store a file that its two models have in common. The bytes of such a file
        come from an earlier delta or from the model. Raises BadRequest, at the latest after the
        last part, if they do not have the digest that the delta records.
        """
        last = self._deltas[-1]
        if last.files[name].digest is None:
            yield from self._stored_parts(last, name)
            return
        holder, followers = self._holder_of(name)
        parts = self._own_parts(name) if holder is None else self._stored_parts(holder, name)
        found = xxhash.xxh3_128()
        for at, part in parts:
            found.update(part)
            yield at, part
        for delta in followers:
            if delta.files[name].digest != found.hexdigest():
                raise BadRequest(self._why_other_file(holder, name, delta))

    def _holder_of(self, name: str) -> tuple[DeltaFile | None, Sequence[DeltaFile]]:
        """Return the delta that stores the bytes of a file (None: they are those of the model), and
        the later deltas, which have only its digest. Raises BadRequest if a later one has another
        size of the file."""
        place = len(self._deltas) - 1
        known = self._deltas[place].files[name]
        while known.digest is not None and place and name in self._deltas[place - 1].files:
            place -= 1
            known = self._deltas[place].files[name]
        holder = self._deltas[place] if known.digest is None else None
        followers = self._deltas[place if holder is None else place + 1 :]
        own = self._a.target.files.get(name)
        size = known.size if holder is not None else own.size if own is not None else 0
        for delta in followers:
            if delta.files[name].size != size:
                raise BadRequest(self._why_other_file(holder, name, delta))
        return holder, followers

    def _own_parts(self, name: str) -> Iterator[tuple[int, bytes]]:
        own, at = self._a.target.files.get(name), 0
        if own is None:
            return
        with ByteSource(self._a, self._budget, strict=False) as files:
            for part in files.read(name, 0, own.size):
                yield at, part
                at += len(part)

    def _why_other_file(self, holder: DeltaFile | None, name: str, delta: DeltaFile) -> str:
        owner = self._a.source.origin.path if holder is None else holder.path
        return (
            f"{owner} has another {name} than the model that {delta.path} was made from; apply it "
            f"to {delta.header.a}"
        )

    def _stored_parts(self, delta: DeltaFile, name: str) -> Iterator[tuple[int, bytes]]:
        stored = [each for each in delta.header.files if each.digest is None]
        with self._lock:
            if delta not in self._plain:
                length = sum(size for each in stored for _, size in each.parts)
                try:
                    self._plain[delta] = self._compression.unpack(delta.plain, length)
                except BadFile as error:
                    raise BadFile(f"{delta.path}: files without tensors: {error}") from None
            plain = self._plain[delta]
        found: list[tuple[int, int, int]] = []
        at = 0
        for each in stored:
            for offset, size in each.parts:
                if each.name == name:
                    found.append((offset, size, at))
                at += size
        for offset, size, at in sorted(found):
            for done in range(0, size, _PIECE):
                yield offset + done, plain[at + done : at + min(size, done + _PIECE)]


def _cast(data: memoryview, source: DType, target: DType) -> memoryview:
    if source == target:
        return data
    return as_type(np.frombuffer(data, numpy_dtype(source)), target).view(np.uint8).data
