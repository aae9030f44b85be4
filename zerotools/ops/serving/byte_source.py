"""Make any range of bytes of a conversion's output files on request, from the source.

A file of the output is a sequence of literals (such as a header), bytes carried from another file,
and tensors. The copies of the tensors in a requested range are cut to the range, extended to whole
elements at both ends, and filled tile by tile:

    requested    [         begin ............................... end )
    file         | header | tensor a        | tensor b                  | tensor c |
    made         | header | a, from the element that has `begin`, b to the element that has `end` |

All requests share the threads that make tiles. The threads work a few tiles ahead of the tile that
is sent. The budget is divided into P buffers. At most P / 3 readers are served at a time, and each
has its own two buffers, for the tile that is sent and for the next tile. So no reader waits for a
buffer. The other P / 3 buffers are for reading further ahead, and go to the readers that request
them first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from threading import Lock, Semaphore, local

import numpy as np

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.scaled_cast import ScaledCast
from zerotools.core.target import CarriedBytes, Target
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.regular_files import source_file
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.dtype_casts import Array
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.io.numeric.torch_float16_cast import cast_for
from zerotools.ops.conversions.conversion import Conversion, cast_to_fp16, prove_coverage
from zerotools.ops.execution.divide_output import ByteRange, Extent, clip_copies, tensor_extents
from zerotools.ops.execution.fill_tile import Losses, fill_tile, of_weights
from zerotools.ops.execution.plan_copies import Copy, RangeCopy, plan
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.execution.tiles import Tile, check_buffer, tiles_of

AHEAD, FAR_AHEAD = 4, 12
"""The largest number of tiles of one request that are being computed or are waiting to be sent."""
MOST_READERS = 256
_FEWEST_READERS = 16
_FEWEST_PIECES = 24
"""The least number of buffers. Of the smallest size they take 1.5 MiB, even if the budget is less.
"""
_LARGEST_PIECE, _LEAST_PIECE = 2**20, 2**16
_LARGEST_FAR_PIECE = 2**23
PLANNED = 512
"""The number of tensors for which planned copies are kept in memory."""


Note = Callable[[int, Losses], None]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Consecutive elements of a tensor at their position in an output file."""

    extent: Extent
    key: Key

    @property
    def end(self) -> int:
        return self.extent.offset + self.extent.numel * self.extent.itemsize


class ByteSource:
    """Reads ranges of the files of `conversion`, from any number of threads. A context manager.

    With `strict`, `read` raises an error if a cast makes finite values infinite. With `unsigned`,
    the checksums in the output are zeros.
    """

    def __init__(
        self,
        conversion: Conversion,
        budget: MemoryBudget,
        *,
        strict: bool = True,
        unsigned: bool = False,
    ) -> None:
        self._conversion = conversion
        self._target: Target = conversion.target
        budget = budget.reading(conversion.source.root)
        self._budget = budget
        self._most_ahead = FAR_AHEAD if budget.is_far else AHEAD
        self._strict = strict
        self._unsigned = unsigned
        self._places = _places(self._target)
        self._starts = {
            file: [each.extent.offset for each in placed] for file, placed in self._places.items()
        }
        self._plans: OrderedDict[Key, list[Copy | RangeCopy]] = OrderedDict()
        self._lock = Lock()
        self._own = local()
        self._stack = ExitStack()
        self._piece, pieces = pieces_of(budget)
        self.readers = min(MOST_READERS, pieces // 3)
        """The largest number of ranges that may be read at the same time."""
        self._ahead = Semaphore(pieces // 3)

    def __enter__(self) -> ByteSource:
        """Check the source and the output, and open what reads need.

        Raises:
            BadFile: the source is incomplete or damaged, or has changed since it was read.
            BadRequest: the output cannot be made in ranges.
        """
        conversion = self._conversion
        if not self._unsigned:
            refuse_unservable(self._target)
        sources = Sources(conversion.stamps)
        sources.check()
        prove_coverage(conversion)
        for key in conversion.target.checkpoint.tensors:
            if isinstance(tensor := conversion.source.tensors[key], ScaledCast):
                check_buffer(key, tensor, self._piece)
        with self._stack as stack:
            stack.enter_context(conversion.sums())
            self._reads = stack.enter_context(OpenFiles(conversion.source.root, sources=sources))
            self._sources = sources
            self._pool = ThreadPoolExecutor(self._budget.workers, thread_name_prefix="tile")
            stack.callback(self._pool.shutdown, wait=True, cancel_futures=True)
            self._cast = cast_for(cast_to_fp16(conversion), self._budget.workers)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(
        self, file: str, begin: int, end: int, note: Note | None = None
    ) -> Generator[bytes, None, None]:
        """Yield the bytes [begin, end) of a file of the output, in order, in pieces of limited
        size.

        At most `readers` reads can run at the same time. `note` is called with the number of tensor
        bytes that were made, and with the values that overflowed in a cast.

        Raises:
            BadFile: the source is damaged or changed.
            BadRequest: with `strict`, values are too large for their new dtype.
        """
        at = begin
        for start, data in self._pieces(file, begin, end, note):
            if at < start:  # what no tensor, literal or carried bytes fill
                yield from self._zeros(start - at)
            assert start <= begin or start >= at, f"{file}: byte {start} comes after {at}"
            cut = data[max(0, begin - start) : end - start]
            yield cut
            at = start + len(data)
        yield from self._zeros(end - min(at, end))

    def read_elements(self, file: str, begin: int, buffer: memoryview) -> None:
        """Fill `buffer` with elements of one tensor, from byte `begin` of a file of the output on.

        The calling thread itself reads from a disk, without a copy in between. So a caller with
        several threads waits for no other thread. Raises the errors of `read`.
        """
        end = begin + len(buffer)
        if self._budget.is_far:
            at = 0
            for data in self.read(file, begin, end):
                buffer[at : at + len(data)] = data
                at += len(data)
            return
        for tile in self._planned_tiles(file, begin, end):
            at = tile.offset - begin
            self._fill(tile, None, np.frombuffer(buffer[at : at + tile.nbytes], np.uint8))

    def _zeros(self, count: int) -> Iterator[bytes]:
        for at in range(0, count, self._piece):
            yield bytes(min(self._piece, count - at))

    def check(self) -> None:
        """Raise BadFile if a file of the source has changed since `read` first read it."""
        self._reads.check_sources()

    def check_all(self) -> None:
        """Raise BadFile if any file that was read to plan the conversion has changed since."""
        self._sources.check()

    def _pieces(
        self, file: str, begin: int, end: int, note: Note | None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the parts of the file that lie in the range, in order, each as its offset and its
        bytes. The first and the last part may extend beyond the range."""
        known = sorted(self._known(file, begin, end), key=lambda each: each[0])
        waiting = deque(known)
        for offset, data in self._tiles(file, begin, end, note):
            while waiting and waiting[0][0] < offset:
                start, make = waiting.popleft()
                yield start, make()
            yield offset, data
        for start, make in waiting:
            yield start, make()

    def _known(self, file: str, begin: int, end: int) -> Iterator[tuple[int, Callable[[], bytes]]]:
        file_plan, most = self._target.files[file], self._piece
        for literal in file_plan.literals:
            first, last = max(begin, literal.offset), min(end, literal.offset + len(literal.data))
            for at in range(first, last, most):
                start, stop = at - literal.offset, min(at + most, last) - literal.offset
                yield at, partial(_sliced, literal.data, start, stop)
        for carried in file_plan.carried:
            first, last = max(begin, carried.offset), min(end, carried.offset + carried.length)
            for at in range(first, last, most):
                count = min(at + most, last) - at
                yield at, partial(self._carried, carried, at, count)

    def _carried(self, carried: CarriedBytes, at: int, count: int) -> bytes:
        begin = carried.source_offset + at - carried.offset
        try:
            with source_file(carried.source) as source:
                self._sources.record(carried.source, source.status())
                data = source.read(count, begin)
        except OSError as error:
            raise BadFile(f"{carried.source} cannot be read: {error.strerror}") from None
        if len(data) < count:
            raise BadFile(
                f"{carried.source} ends at byte {begin + len(data)}, but {begin + count} bytes "
                "were expected; it is truncated"
            )
        return data

    def _tiles(
        self, file: str, begin: int, end: int, note: Note | None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the tiles of the range, in the order of the file."""
        tiles = self._planned_tiles(file, begin, end)
        going: deque[tuple[Tile, Future[bytes]]] = deque()
        ahead = 0
        try:
            while True:
                while len(going) <= ahead:
                    tile = next(tiles, None)
                    if tile is None:
                        break
                    going.append((tile, self._pool.submit(self._made, tile, note)))
                    if ahead + 1 < self._most_ahead and self._ahead.acquire(blocking=False):
                        ahead += 1
                if not going:
                    return
                first, future = going.popleft()
                yield first.offset, future.result()
        finally:
            for _, future in going:
                future.cancel()
            for _ in range(ahead):
                self._ahead.release()

    def _planned_tiles(self, file: str, begin: int, end: int) -> Iterator[Tile]:
        copies = clip_copies(self._copies(file, begin, end), {file: self._whole(file, begin, end)})
        return chain.from_iterable(map(self._cut, _grouped_by_kind(copies)))

    def _cut(self, copies: Iterator[Copy | RangeCopy]) -> Iterator[Tile]:
        return tiles_of(copies, self._piece)

    def _made(self, tile: Tile, note: Note | None) -> bytes:
        return bytes(self._fill(tile, note))

    def _fill(self, tile: Tile, note: Note | None, out: Array | None = None) -> memoryview:
        """Return the bytes of a tile, in `out` or in memory that this thread uses again."""
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch(self._piece, self._piece)
        try:
            is_counted = note is not None and tile.role == "param"
            data, losses = fill_tile(
                self._reads, tile, self._own.scratch, counting=is_counted, cast=self._cast, out=out
            )
        except OSError as error:  # of the disk or the file server, under an open file
            raise BadFile(
                f"{self._conversion.source.origin.path} cannot be read: {error.strerror}"
            ) from None
        if note is not None:
            note(tile.nbytes, of_weights(tile, losses))
        lost = [(key, each) for key, each in losses if each.overflowed]
        if lost and self._strict:
            key, worst = lost[0]
            raise BadRequest(
                f"{key}: {worst.overflowed} values up to {worst.largest:g} are too large for "
                f"{tile.target_dtype}; use --dtype bf16 or fp32, or --allow-overflow"
            )
        return data

    def _copies(self, file: str, begin: int, end: int) -> Iterator[Copy | RangeCopy]:
        """Yield the copies of all tensors in the range, in the order of the file."""
        for placed in self._meeting(file, begin, end):
            for copy in self._planned(placed.key):
                is_here = placed.extent.offset <= copy.target.offset < placed.end
                if copy.target.file == file and is_here:
                    yield copy

    def _meeting(self, file: str, begin: int, end: int) -> Iterator[_Placed]:
        placed = self._places.get(file, [])
        first = max(0, bisect_right(self._starts.get(file, []), begin) - 1)
        for each in placed[first:]:
            if each.extent.offset >= end:
                return
            if each.end > begin:
                yield each

    def _planned(self, key: Key) -> list[Copy | RangeCopy]:
        with self._lock:
            if (known := self._plans.get(key)) is not None:
                self._plans.move_to_end(key)
                return known
        whole: Checkpoint = self._target.checkpoint
        one = replace(whole, tensors={key: whole.tensors[key]})
        copies = sorted(plan(self._conversion.source, one), key=lambda each: each.target.offset)
        with self._lock:
            self._plans[key] = copies
            while len(self._plans) > PLANNED:
                self._plans.popitem(last=False)
        return copies

    def _whole(self, file: str, begin: int, end: int) -> ByteRange:
        """Return the range, extended to the first byte of the element that it begins in."""
        for placed in self._meeting(file, begin, end):
            offset, itemsize = placed.extent.offset, placed.extent.itemsize
            if offset <= begin:
                return ByteRange(begin - (begin - offset) % itemsize, end)
            break
        return ByteRange(begin, end)


def pieces_of(budget: MemoryBudget) -> tuple[int, int]:
    """Return the size in bytes of one buffer, and the number of buffers, without the working
    buffers of the threads."""
    threads = budget.buffers * budget.workers
    wanted = budget.max_memory // (threads + 3 * _FEWEST_READERS)
    largest = _LARGEST_FAR_PIECE if budget.is_far else _LARGEST_PIECE
    piece = min(largest, max(_LEAST_PIECE, wanted)) // _LEAST_PIECE * _LEAST_PIECE
    return piece, max(_FEWEST_PIECES, budget.max_memory // piece - threads)


def refuse_unservable(target: Target) -> None:
    """Raise BadRequest if the output has checksums, which depend on all of its other bytes."""
    if any(file_plan.checksums for file_plan in target.files.values()):
        raise BadRequest(
            "files of this format have checksums over all bytes, so they cannot be served in "
            "ranges; serve the model in safetensors"
        )


def _places(target: Target) -> dict[str, list[_Placed]]:
    found: dict[str, list[_Placed]] = {}
    for key, tensor in target.checkpoint.tensors.items():
        for extent in tensor_extents(tensor):
            if extent.numel:
                found.setdefault(extent.file, []).append(_Placed(extent, key))
    for placed in found.values():
        placed.sort(key=lambda each: each.extent.offset)
    return found


def _grouped_by_kind(copies: Iterator[Copy | RangeCopy]) -> Iterator[Iterator[Copy | RangeCopy]]:
    """Group consecutive copies into groups of only boxes or only ranges.

    This keeps tiles in the order of the file. Copies of ranges wait until they fill a tile, so in a
    mixed group a later tile of a box would be yielded before them.
    """
    return (group for _, group in groupby(copies, lambda each: isinstance(each, Copy)))


def _sliced(data: bytes, start: int, stop: int) -> bytes:
    return data[start:stop]
