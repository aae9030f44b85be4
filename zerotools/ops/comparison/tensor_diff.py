"""Compare pairs of tensors in two passes: first their bytes, until a byte differs, then the values
of the pairs that differ. Equal checkpoints are read only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from threading import Lock
from typing import NamedTuple

import numpy as np

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from zerotools.core.errors import BadFile
from zerotools.io.files.open_files import OpenFiles, ThreadFiles
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.compare_values import (
    BLOCK,
    NOTHING,
    Allowance,
    Distance,
    array_distance,
    same_bytes,
)
from zerotools.io.numeric.dtype_casts import Array, as_type, numpy_dtype
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.comparison.diff_result import (
    CAST,
    DIFFERS,
    DTYPE,
    EQUAL,
    SHAPE,
    UNREADABLE,
    WITHIN,
    Described,
    TensorDifference,
)
from zerotools.ops.comparison.pair_tensors import Pair
from zerotools.ops.comparison.read_two_tensors import (
    Adapted,
    AdaptedTensor,
    Block,
    LocatedTensor,
    TwoTensors,
)
from zerotools.ops.comparison.tolerance import Tolerance, common_type
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers

# A block of both checkpoints has at most this many tiles of a worker. With fewer, threads wait
# longer for each other; with more, the data that was read is no longer in the processor's cache.
_TILES = 4
# The amount that a thread takes at a time, of both: taking has a cost too.
_RUN_BYTES = 16 * 1024 * 1024


class _Task(NamedTuple):
    number: int
    two: TwoTensors
    block: Block

    @property
    def nbytes(self) -> int:
        """The size in bytes of both tensors together."""
        return (self.block.end - self.block.begin) * self.two.itemsize


class _Found(NamedTuple):
    """The result for one block of a pair of tensors. `message` is the reason if the block cannot be
    read. `distance` is None if it was not requested."""

    number: int
    nbytes: int
    distance: Distance | None = None
    message: str | None = None


def compare_tensors(
    a: Checkpoint,
    b: Checkpoint,
    pairs: Sequence[Pair],
    tolerance: Tolerance,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
    adapted: Mapping[Key, Adapted] | None = None,
    *,
    measures_all: bool = False,
) -> list[TensorDifference]:
    """Compare the pairs, and return their results in the same order. With `measures_all`, results
    of equal tensors have a distance too.

    `on_bytes` is called with the number of bytes that were read since its last call. These numbers
    add up to `bytes_of(a, b, pairs)`. `adapted` are the tensors of `b` that an adapter changes.

    Raises:
        BadFile: a file changed while it was read.
    """
    adapted = adapted or {}
    described = [_described(a, b, pair, pair.b in adapted) for pair in pairs]
    numbers = [n for n, (ours, theirs) in enumerate(described) if _obstacle(ours, theirs) is None]
    same_type = [n for n in numbers if described[n][0].dtype == described[n][1].dtype]
    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(OpenFiles(each.root, sources=Sources(each.stamps)))
            for each in (a, b)
        )
        workers = stack.enter_context(TileWorkers(budget))
        reading = _Reading(a, b, pairs, ours, theirs, workers, on_bytes, adapted)
        alike = set[int]()
        if not measures_all:
            alike = set(same_type) - reading.different_bytes(same_type)
        measured = reading.distances([n for n in numbers if n not in alike], tolerance.allowance)
    for each in (a, b):
        Sources(each.stamps).check()
    for number in reading.casts:
        measured.pop(number, None)
    return [
        _judged(
            pair,
            described[n],
            measured.get(n),
            reading.messages.get(n),
            tolerance,
            keeps_equal=measures_all,
        )
        for n, pair in enumerate(pairs)
    ]


def bytes_of(a: Checkpoint, b: Checkpoint, pairs: Iterable[Pair]) -> int:
    """Return the total size in bytes of all paired tensors, in both checkpoints together."""
    return sum(a.tensors[pair.a].nbytes + b.tensors[pair.b].nbytes for pair in pairs)


def _described(
    a: Checkpoint, b: Checkpoint, pair: Pair, is_sum: bool
) -> tuple[Described, Described]:
    ours, theirs = a.tensors[pair.a], b.tensors[pair.b]
    return (
        Described(pair.a, ours.dtype, ours.shape),
        Described(pair.b, FLOAT32 if is_sum else theirs.dtype, theirs.shape),
    )


def _obstacle(ours: Described, theirs: Described) -> str | None:
    """Return the status of a pair if its values cannot be compared, else None."""
    if ours.shape != theirs.shape:
        return SHAPE
    return DTYPE if common_type(ours.dtype, theirs.dtype) is None else None


def _judged(
    pair: Pair,
    described: tuple[Described, Described],
    distance: Distance | None,
    message: str | None,
    tolerance: Tolerance,
    *,
    keeps_equal: bool,
) -> TensorDifference:
    is_cast = described[0].dtype != described[1].dtype
    differing = 0 if distance is None else distance.differing - is_cast * distance.both_nan
    status = _obstacle(*described)
    if message is not None:
        status, distance = UNREADABLE, None
    elif status is None and not differing:
        status, distance = (CAST if is_cast else EQUAL), distance if keeps_equal else None
    elif status is None:
        assert distance is not None, "a difference was measured"
        is_near = tolerance.allowance != NOTHING and not distance.outside
        status = WITHIN if is_near else DIFFERS
    return TensorDifference(
        pair.name, pair.role, status, *described, distance, pair.is_copy, message
    )


class _Reading:
    """The open files of both checkpoints, and the results so far.

    A pair has a number, its index in `pairs`. `messages` are the reasons why pairs cannot be read.
    `casts` are the pairs that are equal after a cast.
    """

    def __init__(
        self,
        a: Checkpoint,
        b: Checkpoint,
        pairs: Sequence[Pair],
        ours: OpenFiles,
        theirs: OpenFiles,
        workers: TileWorkers,
        on_bytes: Callable[[int], None],
        adapted: Mapping[Key, Adapted],
    ) -> None:
        self._adapted = adapted
        self._a = a
        self._b = b
        self._pairs = pairs
        self._ours = ours
        self._theirs = theirs
        self._workers = workers
        self._on_bytes = on_bytes
        self._left = [bytes_of(a, b, (pair,)) for pair in pairs]
        self.messages: dict[int, str] = {}
        self.casts: set[int] = set()

    def different_bytes(self, numbers: Iterable[int]) -> set[int]:
        """Return the numbers of the pairs that differ in at least one byte. A pair is read only
        until such a byte."""
        differing: set[int] = set()

        def compare(task: _Task, ours: Array, theirs: Array) -> None:
            if not same_bytes(ours, theirs):
                differing.add(task.number)  # here, so that other threads stop reading it

        for _ in self._each(numbers, compare, differing):
            pass
        return differing

    def distances(self, numbers: Iterable[int], allowance: Allowance) -> dict[int, Distance]:
        """Return the distance of each pair, keyed by its number, and set `casts`."""
        total: dict[int, Distance] = {}
        equal_in: dict[int, frozenset[DType]] = {}
        # One thread at a time, while others read: it is many short steps, between which threads
        # would wait for one another longer than they compute (benchmarks/results/diff.md).
        alone = Lock()

        def compare(task: _Task, ours: Array, theirs: Array) -> Distance:
            with alone:
                types = _equal_in(task, ours, theirs)
                equal_in[task.number] = equal_in.get(task.number, types) & types
                return _distance(task, ours, theirs, allowance)

        for found in self._each(numbers, compare, set()):
            if found.distance is not None:
                known = total.get(found.number)
                total[found.number] = found.distance if known is None else known + found.distance
        self.casts = {number for number, types in equal_in.items() if types}
        return total

    def _each(
        self,
        numbers: Iterable[int],
        compare: Callable[[_Task, Array, Array], Distance | None],
        settled: set[int],
    ) -> Iterator[_Found]:
        """Call `compare` for every block of the pairs `numbers`, and yield the results. Blocks of
        pairs in `settled` and of unreadable pairs are skipped. More pairs may become settled or
        unreadable during the loop.
        """

        def work(run: list[_Task], scratch: Scratch) -> list[_Found]:
            with self._ours.holding() as ours, self._theirs.holding() as theirs:
                return [
                    _compared(task, ours, theirs, scratch, compare)
                    for task in run
                    if not (task.number in settled or task.number in self.messages)
                ]

        runs = _runs(self._tasks(numbers, settled))
        for found in chain.from_iterable(self._workers.share(runs, work, tiles=_TILES)):
            if found.message is not None:
                self.messages.setdefault(found.number, found.message)
            done = min(found.nbytes, self._left[found.number])
            if done:
                self._left[found.number] -= done
                self._on_bytes(done)
            yield found

    def _located(self, key: Key) -> LocatedTensor:
        product = self._adapted.get(key)
        if product is None:
            return LocatedTensor(self._b, key)
        return AdaptedTensor(self._b, key, product)

    def _tasks(self, numbers: Iterable[int], settled: set[int]) -> Iterator[_Task]:
        """Yield the blocks of the pairs `numbers`, without pairs that are settled or unreadable.
        With many ranks, the positions of a tensor in files take much memory. So they are computed
        for its first block, and dropped after its last.
        """
        budget = self._workers.budget
        sizes = _TILES * budget.tile_bytes, budget.wide_bytes
        for number in numbers:
            if number in self.messages:
                continue
            pair = self._pairs[number]
            try:
                two = TwoTensors(LocatedTensor(self._a, pair.a), self._located(pair.b))
            except BadFile as error:
                self.messages[number] = str(error)
                continue
            for block in two.blocks(*sizes):
                if number in settled or number in self.messages:
                    break
                yield _Task(number, two, block)


def _runs(tasks: Iterable[_Task]) -> Iterator[list[_Task]]:
    """Yield groups of consecutive tasks with at least `_RUN_BYTES` bytes each. The last group may
    be smaller."""
    run: list[_Task] = []
    nbytes = 0
    for task in tasks:
        run.append(task)
        nbytes += task.nbytes
        if nbytes >= _RUN_BYTES:
            yield run
            run, nbytes = [], 0
    if run:
        yield run


def _compared(
    task: _Task,
    ours: ThreadFiles,
    theirs: ThreadFiles,
    scratch: Scratch,
    compare: Callable[[_Task, Array, Array], Distance | None],
) -> _Found:
    try:
        distance = compare(task, *task.two.read(ours, theirs, task.block, scratch))
        return _Found(task.number, task.nbytes, distance)
    except BadFile as error:
        return _Found(task.number, task.nbytes, message=str(error))


def _equal_in(task: _Task, ours: Array, theirs: Array) -> frozenset[DType]:
    """Return the dtypes that make both tensors equal by a cast.

    The result is empty except for a float16 and a bfloat16 tensor: neither dtype holds all values
    of the other.
    """
    two = task.two
    if {two.ours.dtype, two.theirs.dtype} != {FLOAT16, BFLOAT16}:
        return frozenset()
    values = [
        raw.view(numpy_dtype(each.dtype)) for raw, each in ((ours, two.ours), (theirs, two.theirs))
    ]
    return frozenset(
        dtype
        for dtype in (FLOAT16, BFLOAT16)
        if all(
            _same_numbers(*(as_type(each[first : first + BLOCK], dtype) for each in values))
            for first in range(0, len(values[0]), BLOCK)
        )
    )


def _same_numbers(ours: Array, theirs: Array) -> bool:
    """Return whether all bits are equal. NaN counts as equal to NaN, because a cast may change its
    bits."""
    unequal = ours.view(np.uint16) != theirs.view(np.uint16)
    return not unequal.any() or bool((np.isnan(ours[unequal]) & np.isnan(theirs[unequal])).all())


def _distance(task: _Task, ours: Array, theirs: Array, allowance: Allowance) -> Distance:
    """Return the difference of one block, computed in the common dtype of both tensors, for `BLOCK`
    elements at a time."""
    two, block = task.two, task.block
    dtype = common_type(two.ours.dtype, two.theirs.dtype)
    assert dtype is not None, "a pair without a common type is not read"
    values = [
        raw.view(numpy_dtype(each.dtype)) for raw, each in ((ours, two.ours), (theirs, two.theirs))
    ]
    total, sizes = Distance(), two.theirs.sizes()
    for first in range(0, block.end - block.begin, BLOCK):
        parts = [as_type(each[first : first + BLOCK], dtype) for each in values]
        some = None if sizes is None else sizes[first : first + BLOCK]
        total += array_distance(parts[0], parts[1], block.begin + first, allowance, some)
    return total
