"""Write the delta of two models: the data that turns the first model into the second."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import xxhash

from zerotools.core.errors import BadRequest
from zerotools.io.files.exclusive_directory import lock_file
from zerotools.io.files.open_files import sync_directory
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.part_ledger import refuse_without_part
from zerotools.io.output.staging import partial_of
from zerotools.io.output.write_to_store import upload_new
from zerotools.io.stores.store_interface import WritableStore
from zerotools.io.stores.store_path import forget_path, writable_store
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.delta.block_codec import (
    BlockBuffers,
    Compression,
    DeltaBlockKind,
    EncodedBlock,
    encode_block,
)
from zerotools.ops.delta.delta_file import (
    LARGEST_PLAIN,
    MAGIC,
    NO_BASE,
    BlockWriter,
    DeltaHeader,
    DeltaPlainFile,
    DeltaTensor,
    DeltaWriter,
    digest_of,
    is_delta,
)
from zerotools.ops.delta.models_of_delta import in_layout, tensors_of
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.execution.resume_identity import identity_of
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.serving.byte_source import ByteSource
from zerotools.version import version

LEAST_SHARED_BYTES = 64 * 1024
"""Files without tensors that have fewer bytes than this are always stored in the delta, even if the
first model has the same files.
"""
_BYTES_PER_THREAD = 40 << 20
"""The memory of a thread: a block of fp32 in both models, its change, and the blocks that are
computed in advance."""
_PART_BYTES, _MOST_PARTS, _PARTS_AT_ONCE = 16 << 20, 9_000, 2
"""The size of the parts in which a delta is sent to a store, the most parts of an object, and the
number of parts that are sent at the same time."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a disk that is full."""
_PIECE = 1 << 20
"""The number of bytes of a file that are compared at a time."""
_AHEAD = 3
"""The number of blocks per thread that are computed before they can be written."""

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@dataclass(frozen=True)
class DeltaReport:
    """The result of making a delta: the sizes of the delta and of the second model, and the number
    of changed elements.

    `missing` are the numbers of parts that are not complete yet. While there are such parts, all
    numbers but `model_bytes` are those of the part that was made.
    """

    nbytes: int
    model_bytes: int
    elements: int
    changed: int
    new_tensors: tuple[str, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()


def block_workers(budget: MemoryBudget) -> int:
    """Return the number of threads that the budget allows if each holds one block; at least 1."""
    return max(1, min(budget.workers, budget.max_memory // _BYTES_PER_THREAD))


def in_order(
    pieces: Iterable[Piece], work: Callable[[Piece], Result], workers: int
) -> Iterator[Result]:
    """Call `work` in threads for each of the pieces, and yield the results in the order of the
    pieces. A few results are computed in advance."""
    going: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="delta") as pool:
        try:
            for piece in pieces:
                going.append(pool.submit(work, piece))
                if len(going) >= _AHEAD * workers:
                    yield going.popleft().result()
            while going:
                yield going.popleft().result()
        finally:
            for each in going:
                each.cancel()


class DeltaBlock(NamedTuple):
    """The bytes [first, last) of a tensor's file, which are one block of the tensor."""

    tensor: DeltaTensor
    first: int
    last: int

    @property
    def elements(self) -> int:
        """The number of elements in the block."""
        return (self.last - self.first) // self.tensor.dtype.itemsize


@dataclass(frozen=True)
class DeltaPlan:
    """The plan of the delta that turns the model `a` into the model `b`.

    Attributes:
        base: the plan that writes the weights of `a` in the layout of `b`.
        tensors: the tensors of `b`, in the order of the delta.
        shared: the names of the tensors that both models have.
    """

    a: Conversion
    b: Conversion
    base: Conversion
    tensors: tuple[DeltaTensor, ...]
    shared: frozenset[str]

    @property
    def model_bytes(self) -> int:
        """The size of the model `b`."""
        return self.b.bytes_to_write

    @property
    def elements(self) -> int:
        """The number of elements of the model `b`."""
        return sum(each.numel for each in self.tensors)

    @property
    def new_tensors(self) -> tuple[str, ...]:
        """The names of the tensors that only `b` has."""
        return tuple(sorted(each.name for each in self.tensors if each.name not in self.shared))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user: those of the model `b`, and one if most of it is not in `a`."""
        sizes = {each.name: each.end - each.offset for each in self.tensors}
        new, whole = sum(sizes[name] for name in self.new_tensors), sum(sizes.values())
        if 2 * new <= whole:
            return self.b.notes
        a, b = self.a.source.origin.path, self.b.source.origin.path
        said = (
            f"{new / whole:.0%} of the bytes of {b} are in tensors that {a} lacks, and are stored "
            "whole; if only the names differ, make these equal with --map-to hf, --rename or "
            "--strip-prefix"
        )
        return (*self.b.notes, said)

    @property
    def identity(self) -> dict[str, str]:
        """The inputs of the delta, in the form of `identity_of`."""
        both = [
            identity_of(each.source, each.target, each.request, each.stamps)
            for each in (self.base, self.b)
        ]
        own = {name: "-".join(each[name] for each in both) for name in both[0]}
        return {**own, "version of zerotools": version()}

    def blocks(self, part: OutputPart | None) -> Iterator[DeltaBlock]:
        """Yield the blocks of `part`, or of the whole delta, in order. All parts have about equally
        many bytes of the model."""
        total = sum(each.end - each.offset for each in self.tensors)
        at = 0
        for tensor in self.tensors:
            for number in range(tensor.blocks):
                block = DeltaBlock(tensor, *tensor.block(number))
                if part is None or at * part.of // total == part.index - 1:
                    yield block
                at += block.last - block.first

    def bytes_of_part(self, part: OutputPart | None) -> int:
        """Return the number of bytes of the model `b` in the blocks of `part`, or of all parts."""
        return sum(block.last - block.first for block in self.blocks(part))


def plan_delta(a: Conversion, b: Conversion) -> DeltaPlan:
    """Return the plan of the delta that turns the model `a` into the model `b`.

    Raises:
        BadRequest: the models have no tensor in common, or a tensor has different shapes in them.
    """
    tensors = tensors_of(b)
    sizes = {name: file.size for name, file in b.target.files.items()}
    base, shared = in_layout(a, tensors, sizes)
    return DeltaPlan(a, b, base, tensors, shared)


def make_delta(
    plan: DeltaPlan,
    stream: BinaryIO,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> DeltaReport:
    """Write a delta.

    `on_bytes` is called with the number of bytes of the second model that were processed since its
    last call.

    Raises:
        BadFile: a checkpoint is damaged, or changed while it was read.
    """
    writer, changed = write_blocks(plan, stream, budget, on_bytes)
    writer.end()
    return DeltaReport(
        writer.nbytes,
        plan.model_bytes,
        plan.elements,
        changed,
        plan.new_tensors,
        plan.notes,
    )


def write_blocks(
    plan: DeltaPlan,
    stream: BinaryIO,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None],
    part: OutputPart | None = None,
    made_of: str | None = None,
) -> tuple[BlockWriter, int]:
    """Write the blocks of a delta, or those of one part. The header, with the text `made_of`, comes
    before the first block of the delta. Return the writer and the number of changed elements.

    Raises the errors of `make_delta`.
    """
    compression, buffers = Compression(), BlockBuffers()
    a, b = plan.a.source.origin.path, plan.b.source.origin.path
    changed = 0
    with (
        ByteSource(plan.b, budget) as theirs,
        ByteSource(plan.base, budget, strict=False) as ours,
    ):
        if part is None or part.index == 1:
            files, plain = _plain_files(plan, theirs, budget)
            header = DeltaHeader(files, plan.tensors, str(a), str(b), made_of=made_of)
            writer: BlockWriter = DeltaWriter(stream, header, compression.pack(plain))
            del plain
        else:
            writer = BlockWriter(stream)

        def work(block: DeltaBlock) -> tuple[EncodedBlock, bytes, bytes, int]:
            tensor, first, last = block
            before: memoryview | None = None
            after = buffers.take("after", last - first)
            theirs.read_elements(tensor.file, first, after)
            if tensor.name in plan.shared:
                before = buffers.take("before", last - first)
                ours.read_elements(tensor.file, first, before)
            encoded = encode_block(before, after, tensor.dtype.itemsize, compression.pack)
            old = NO_BASE if before is None else digest_of(before)
            new = old if encoded.kind == DeltaBlockKind.SAME else digest_of(after)
            return encoded, old, new, last - first

        for encoded, old, new, nbytes in in_order(plan.blocks(part), work, block_workers(budget)):
            writer.block(encoded, old, new)
            changed += encoded.changed
            on_bytes(nbytes)
        theirs.check_all()
        ours.check_all()
    return writer, changed


def _plain_files(
    plan: DeltaPlan, source: ByteSource, budget: MemoryBudget
) -> tuple[tuple[DeltaPlainFile, ...], bytearray]:
    """Return the files of the second model, which `source` reads, and the bytes of these files that
    the delta stores.

    Raises BadRequest if these bytes are too many for a delta.
    """
    a, b = plan.a, plan.b
    spans: dict[str, list[tuple[int, int]]] = {}
    for tensor in plan.tensors:
        spans.setdefault(tensor.file, []).append((tensor.offset, tensor.end))
    found: list[DeltaPlainFile] = []
    with ByteSource(a, budget, strict=False) as own:
        for name, file in b.target.files.items():
            at, parts = 0, []
            for begin, end in [*sorted(spans.get(name, ())), (file.size, file.size)]:
                if begin > at:
                    parts.append((at, begin - at))
                at = end
            same = a.target.files.get(name)
            digest = None
            if (
                name not in spans
                and file.size >= LEAST_SHARED_BYTES
                and same is not None
                and same.size == file.size
            ):
                digest = _digest_if_equal(source, own, name, file.size)
            stored = tuple(parts) if digest is None else ()
            found.append(DeltaPlainFile(name, file.size, stored, digest))
    count = sum(length for each in found for _, length in each.parts)
    if count > LARGEST_PLAIN:
        raise BadRequest(
            f"{b.source.origin.path} has {count} bytes in files without weights, and a delta holds "
            f"at most {LARGEST_PLAIN}; move the largest of them elsewhere"
        )
    plain = bytearray()
    for each in found:
        for begin, length in each.parts:
            for piece in source.read(each.name, begin, begin + length):
                plain += piece
    return tuple(found), plain


def _digest_if_equal(first: ByteSource, second: ByteSource, name: str, size: int) -> str | None:
    """Return the digest of a file if it is equal in both models, else None."""
    digest = xxhash.xxh3_128()
    for at in range(0, size, _PIECE):
        place = name, at, min(size, at + _PIECE)
        data = b"".join(first.read(*place))
        if data != b"".join(second.read(*place)):
            return None
        digest.update(data)
    return digest.hexdigest()


@contextmanager
def written_file(out: Path | BinaryIO, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Return a context with the file `out` for writing; `-` is the standard output. A file object
    is returned itself, and stays open.

    A file is written under another name, and renamed at the end of the context. So `out` is
    complete or unchanged. Raises BadRequest if `out` may not be replaced or cannot be written.
    """
    if not isinstance(out, Path):
        with _whole_writes(out) as stream:
            yield stream
        return
    if str(out) == "-":
        if sys.__stdout__ is None:
            raise BadRequest("the standard output is closed; name a file, or pipe the delta")
        try:
            yield sys.stdout.buffer
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, "the standard output") from None
        return
    if isinstance(out, RemotePath):
        with _object(out, overwrite=overwrite) as stream:
            yield stream
        return
    check_delta_output(out, overwrite=overwrite)
    draft = partial_of(out)
    refuse_without_part(draft)
    if draft.is_dir():
        raise BadRequest(
            f"{draft} is a directory, but the delta is written to a file of this name first; "
            "remove the directory, or name another output"
        )
    try:
        with _own_file(draft) as stream:
            try:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                draft.rename(out)
            except BaseException:  # removed, and raised again
                with suppress(OSError):
                    draft.unlink()
                raise
        sync_directory(out.absolute().parent)
    except OSError as error:
        if error.errno in _FULL:
            raise OSError(error.errno, error.strerror, str(out)) from None
        raise BadRequest(f"{out} cannot be written: {error.strerror}") from None


def check_delta_output(out: Path, *, overwrite: bool) -> None:
    """Raise BadRequest if `out` exists and may not be replaced. With `overwrite`, a delta
    may be."""
    if out.is_dir():
        raise BadRequest(f"{out} is a directory; name a file, such as {out / 'model.delta'}")
    if out.exists() and not out.is_file():
        raise BadRequest(
            f"{out} is not a regular file; write the delta to -, and redirect it: "
            f"zerotools delta A B - > {out}"
        )
    if os.path.lexists(out) and not overwrite:
        raise BadRequest(f"{out} exists; choose another output, or pass --overwrite")
    if out.exists() and not is_delta(out):
        raise BadRequest(f"{out} is not a delta, so --overwrite does not replace it")


@contextmanager
def _object(out: RemotePath, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Return a context with a temporary file, which becomes the object `out` of a store."""
    store, key = writable_store(out)
    forget_path(out)
    if out.is_dir():
        raise BadRequest(f"{out} is a directory; name an object, such as {out / 'model.delta'}")
    is_new = not out.is_file()
    if not is_new:
        if not overwrite:
            raise BadRequest(f"{out} exists; choose another output, or pass --overwrite")
        if out.open_source().read(len(MAGIC), 0) != MAGIC:
            raise BadRequest(f"{out} is not a delta, so --overwrite does not replace it")
    with temporary_file() as spool:
        yield spool
        size = spool.tell()
        spool.seek(0)
        if size > _PART_BYTES:
            if is_new and store.head(key) is not None:
                raise _appeared_error(out)
            part_bytes = max(_PART_BYTES, -(-size // _MOST_PARTS))
            pieces = iter(lambda: spool.read(_PIECE), b"")
            if is_new:
                upload_new(store, key, pieces, size, part_bytes, _PARTS_AT_ONCE)
            else:
                store.upload(key, pieces, part_bytes, _PARTS_AT_ONCE)
        else:
            _put_small(store, key, spool.read(), out if is_new else None)
    forget_path(out)


def _put_small(store: WritableStore, key: str, data: bytes, new: RemotePath | None) -> None:
    """Write a small object. With `new`, its path, BadRequest is raised if it exists already."""
    try:
        store.put(key, data, new=new is not None)
    except FileExistsError:
        # The reply to an earlier try may have been lost: then the object is this one.
        found = store.head(key)
        if new and (found is None or bytes(store.get(found, 0, found.size)) != data):
            raise _appeared_error(new) from None


def _appeared_error(out: RemotePath) -> BadRequest:
    return BadRequest(
        f"{out} was created by another program during this run; choose another output, or pass "
        "--overwrite"
    )


@contextmanager
def temporary_file() -> Iterator[BinaryIO]:
    """Return a context with a temporary file. An error about a full disk names the file's
    directory."""
    with tempfile.TemporaryFile() as spool:
        try:
            yield spool
        except OSError as error:
            if error.errno in _FULL and error.filename is None:
                place = f"{tempfile.gettempdir()} (TMPDIR)"
                raise OSError(error.errno, error.strerror, place) from None
            raise


@contextmanager
def _whole_writes(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Return a context with a file that writes all bytes to `stream`. A file object without a
    buffer may write only some of them."""
    if not isinstance(stream, io.RawIOBase):
        yield stream
        return
    buffered = io.BufferedWriter(stream)
    try:
        yield buffered
    finally:
        buffered.detach()


def _own_file(path: Path) -> BinaryIO:
    """Open an empty file at `path` and lock it, so that only this run writes it. Closing the file
    releases the lock.

    Raises BadRequest if another run is writing it, or OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    stream = os.fdopen(os.open(path, flags, 0o666), "r+b")
    try:
        try:
            lock_file(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, path)
            is_own = os.path.samestat(os.fstat(stream.fileno()), path.lstat())
        except (BlockingIOError, FileNotFoundError):
            is_own = False
        if not is_own:
            raise BadRequest(f"another run is writing {path}; wait for it, or name another output")
        stream.truncate()
    except BaseException:  # released, and raised again
        stream.close()
        raise
    return stream
