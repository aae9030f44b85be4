from __future__ import annotations

import errno
import fcntl
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.layouts import Placement, load, store, target
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes, Target
from zerotools.io.numeric.dtype_casts import NONE_LOST, Array
from zerotools.ops.execution.execute import Publication, Transfer, execute
from zerotools.ops.execution.plan_copies import plan
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget

KEY = Key("w", "param")


def whole(shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> list[Placement]:
    return [Placement(Box.whole(shape), "a", 3, order or tuple(range(len(shape))))]


def columns(shape: tuple[int, int], count: int) -> list[Placement]:
    width = shape[1] // count
    return [
        Placement(Box((0, i * width), (shape[0], width)), f"{i}", 1, (0, 1)) for i in range(count)
    ]


def noise(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_a_tensor_larger_than_the_budget(tmp_path: Path) -> None:
    values = noise(700, 1100)
    source = store(tmp_path / "in", {KEY: (values, dtypes.FLOAT32, columns((700, 1100), 4))})
    output = target(tmp_path / "out", {KEY: (values.shape, dtypes.FLOAT32, whole(values.shape))})
    budget = MemoryBudget(max_memory=3 * MIN_TILE_BYTES, workers=1)
    assert values.nbytes > 20 * budget.tile_bytes
    execute(plan(source, output.checkpoint), source.root, output, transfer=Transfer(budget=budget))
    assert load(output.checkpoint, KEY).tobytes() == values.tobytes()


def test_a_transposed_source_with_large_gaps(tmp_path: Path) -> None:
    values = noise(3, 30_000)
    placed = whole(values.shape, order=(1, 0))
    source = store(tmp_path / "in", {KEY: (values, dtypes.FLOAT32, placed)})
    output = target(tmp_path / "out", {KEY: (values.shape, dtypes.FLOAT32, whole(values.shape))})
    execute(plan(source, output.checkpoint), source.root, output)
    assert load(output.checkpoint, KEY).tobytes() == values.tobytes()


def test_few_columns_of_very_long_rows(tmp_path: Path) -> None:
    values = noise(5, 40_000)
    source = store(tmp_path / "in", {KEY: (values, dtypes.FLOAT32, whole(values.shape))})
    output = target(
        tmp_path / "out", {KEY: (values.shape, dtypes.FLOAT32, columns((5, 40_000), 8))}
    )
    execute(plan(source, output.checkpoint), source.root, output)
    assert load(output.checkpoint, KEY).tobytes() == values.tobytes()


def in_two(second_gap: int, directory: Path) -> tuple[Array, Checkpoint, Target]:
    """A vector of 3 MB in one file, and a target that has it in two."""
    values, first = noise(750_000), 2**18 + 16
    head, tail = Box((0,), (first,)), Box((first,), (values.size - first,))
    source = store(
        directory / "in",
        {KEY: (values, dtypes.FLOAT32, [Placement(Box.whole(values.shape), "a", 64, (0,))])},
    )
    places = [Placement(head, "a", 64, (0,)), Placement(tail, "b", second_gap, (0,))]
    output = target(directory / "out", {KEY: (values.shape, dtypes.FLOAT32, places)})
    return values, source, output


@pytest.mark.parametrize(("second_gap", "blocks"), [(64, 255), (128, 255 + 475)])
def test_blocks_at_the_same_place_in_both_files_are_shared(
    second_gap: int, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, source, output = in_two(second_gap, tmp_path)
    written = dict[int, int]()

    def clone(descriptor: int, _request: int, wanted: bytes) -> int:
        of, begin, length, offset = struct.unpack("=qQQQ", wanted)
        assert {begin % 4096, length % 4096, offset % 4096} == {0}
        written[length] = written.get(length, 0) + 1
        return os.pwrite(descriptor, os.pread(of, length, begin), offset)

    monkeypatch.setattr(fcntl, "ioctl", clone)
    report = execute(plan(source, output.checkpoint), source.root, output)
    assert load(output.checkpoint, KEY).tobytes() == values.tobytes()
    assert sum(length * times for length, times in written.items()) == blocks * 4096
    assert report.bytes_written == values.nbytes
    (note,) = report.notes
    assert note.split(" were ")[0] in (
        f"{blocks * 4096} bytes",
        f"{blocks * 4096 / 2**20:,.1f} MiB",
    )


def test_a_file_system_without_shared_blocks_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, source, output = in_two(128, tmp_path)
    asked = []

    def refuse(_descriptor: int, _request: int, wanted: bytes) -> int:
        asked.append(wanted)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    transfer = Transfer(budget=MemoryBudget(workers=1))
    report = execute(plan(source, output.checkpoint), source.root, output, transfer=transfer)
    assert load(output.checkpoint, KEY).tobytes() == values.tobytes()
    assert len(asked) == 1
    assert report.notes == ()


def test_checksums_literals_and_carried_bytes(tmp_path: Path) -> None:
    values = noise(300, 700)
    source = store(tmp_path / "in", {KEY: (values, dtypes.FLOAT32, columns((300, 700), 2))})
    (tmp_path / "notes").write_bytes(b"0123456789")
    size = 8 + values.nbytes + 4 + 5
    chunk = Chunk(Box.whole(values.shape), "f", 8)
    out = tmp_path / "out"
    output = Target(
        Checkpoint(out, {KEY: Tensor(dtypes.FLOAT32, values.shape, [chunk])}, Origin("t", out)),
        {
            "f": FilePlan(
                size,
                literals=[LiteralBytes(0, b"headhead")],
                carried=[CarriedBytes(8 + values.nbytes + 4, tmp_path / "notes", 2, 5)],
                checksums=[Checksum(8, values.nbytes, (8 + values.nbytes,))],
            )
        },
    )
    budget = MemoryBudget(max_memory=3 * 2 * MIN_TILE_BYTES, workers=2)
    execute(plan(source, output.checkpoint), source.root, output, transfer=Transfer(budget=budget))
    data = (out / "f").read_bytes()
    assert data[:8] == b"headhead"
    assert data[8 : 8 + values.nbytes] == values.tobytes()
    assert data[-9:-5] == zlib.crc32(values.tobytes()).to_bytes(4, "little")
    assert data[-5:] == b"23456"


def test_fp16_overflow_and_nan_are_counted(tmp_path: Path) -> None:
    values = np.array([1.0, 7e4, -1e9, np.inf, np.nan, 65519.0], dtype=np.float32)
    source = store(tmp_path / "in", {KEY: (values, dtypes.FLOAT32, whole(values.shape))})
    output = target(tmp_path / "out", {KEY: (values.shape, dtypes.FLOAT16, whole(values.shape))})
    report = execute(plan(source, output.checkpoint), source.root, output)
    losses = report.losses[KEY]
    assert (losses.overflowed, losses.largest, losses.nans) == (2, 1e9, 1)


def test_what_is_not_finite_is_counted_in_parameters_alone(tmp_path: Path) -> None:
    values = np.array([1.0, -np.inf, np.nan, 7e4], dtype=np.float32)
    mask = Key("mask", "buffer")
    placed = {key: (values, dtypes.FLOAT32, whole(values.shape)) for key in (KEY, mask)}
    source = store(tmp_path / "in", placed)
    for dtype, overflowed in ((dtypes.FLOAT32, 0), (dtypes.FLOAT16, 1)):
        wanted = {key: (values.shape, dtype, whole(values.shape)) for key in (KEY, mask)}
        output = target(tmp_path / dtype.name, wanted)
        losses = execute(plan(source, output.checkpoint), source.root, output).losses
        assert (losses[KEY].nans, losses[KEY].infinities) == (1, 1)
        lost = losses.get(mask, NONE_LOST)
        assert (lost.nans, lost.infinities, lost.overflowed) == (0, 0, overflowed)


def test_a_truncated_source_leaves_nothing(tmp_path: Path) -> None:
    values = noise(64, 64)
    source = store(tmp_path / "in", {KEY: (values, dtypes.FLOAT32, whole(values.shape))})
    os.truncate(source.root / "0/a", 100)
    output = target(tmp_path / "out", {KEY: (values.shape, dtypes.FLOAT32, whole(values.shape))})
    with pytest.raises(
        BadFile, match=r"0/a is truncated: it ends at byte 100, but \d+ bytes were expected"
    ):
        execute(plan(source, output.checkpoint), source.root, output)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_a_check_can_veto_the_output(tmp_path: Path) -> None:
    values = noise(4)
    source = store(tmp_path / "in", {KEY: (values, dtypes.FLOAT32, whole(values.shape))})
    output = target(tmp_path / "out", {KEY: (values.shape, dtypes.FLOAT32, whole(values.shape))})

    def refuse(_: object) -> None:
        raise BadRequest("no")

    with pytest.raises(BadRequest, match="no"):
        execute(
            plan(source, output.checkpoint),
            source.root,
            output,
            publication=Publication(check=refuse),
        )
    assert not (tmp_path / "out").exists()


def test_a_budget_too_small_names_the_least_that_works() -> None:
    with pytest.raises(BadRequest, match=r"4 workers need at least 786432"):
        MemoryBudget(max_memory=1000, workers=4)
    assert MemoryBudget(max_memory=786432, workers=4).tile_bytes == MIN_TILE_BYTES
