"""Tiles hold every byte of the copies once, in order, whatever they were cut or joined to."""

from __future__ import annotations

from itertools import count, pairwise

from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, ChunkBox, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT32, DType
from zerotools.core.flat_ranges import Range
from zerotools.ops.execution.plan_copies import Copy, RangeCopy
from zerotools.ops.execution.tiles import (
    MAX_PIECES,
    RangePart,
    Tile,
    alternate_files,
    tiles_of,
)

Lying = dict[tuple[str, int], tuple[Key, str, int]]


@st.composite
def flat_copies(draw: st.DrawFn) -> list[RangeCopy]:
    """Copies into two files, some of them neighbours, each of several source ranges."""
    ends, copies = {"a": 0, "b": 5}, []
    for number in range(draw(st.integers(1, 8))):
        numel = draw(st.integers(1, 60))
        file, first = draw(st.sampled_from("ab")), draw(st.integers(0, 9))
        target_dtype = draw(st.sampled_from((FLOAT32, BFLOAT16)))
        offset = ends[file] + draw(st.sampled_from((0, 0, 3)))
        ends[file] = offset + numel * target_dtype.itemsize
        cuts = draw(st.sets(st.integers(0, numel), max_size=3)) | {0, numel}
        pieces = tuple(
            Range(first + a, first + b, f"s{a}", 4 * a + 1) for a, b in pairwise(sorted(cuts))
        )
        key = Key(f"w{number}", draw(st.sampled_from(("param", "exp_avg"))))
        whole = Range(first, first + numel, file, offset)
        copies.append(RangeCopy(key, whole, FLOAT32, target_dtype, pieces))
    return copies


def lying(file: str, offset: int, key: Key, dtype: DType, pieces: tuple[Range, ...]) -> Lying:
    """What belongs at each place of an output file: tensor, source file and offset there."""
    found: Lying = {}
    for begin, end, source, start in pieces:
        for number in range(end - begin):
            found[file, offset] = (key, source, start + 4 * number)
            offset += dtype.itemsize
    return found


def in_tile(tile: Tile) -> Lying:
    found, at = {}, tile.offset
    for part in tile.parts:
        assert isinstance(part, RangePart)
        pieces = tuple(part.pieces)
        assert part.numel == sum(end - begin for begin, end, _, _ in pieces)
        assert tile.key_of(at - tile.offset) == part.key
        found |= lying(tile.file, at, part.key, tile.target_dtype, pieces)
        at += part.numel * tile.target_dtype.itemsize
    assert at == tile.offset + tile.nbytes
    return found


@given(flat_copies(), st.sampled_from((16, 32, 64, 256)), st.booleans())
def test_flat_copies_are_cut_and_joined(
    copies: list[RangeCopy], tile_bytes: int, sizes_known: bool
) -> None:
    needed: dict[str, int] = {}
    for copy in copies:
        needed[copy.target.file] = needed.get(copy.target.file, 0) + copy.nbytes
    wanted: Lying = {}
    for key, target, _, dtype, pieces in copies:
        wanted |= lying(target.file, target.offset, key, dtype, pieces)
    found: Lying = {}
    for tile in tiles_of(copies, tile_bytes, needed if sizes_known else None):
        own = in_tile(tile)
        assert 0 < tile.nbytes <= tile_bytes
        assert {part.key.role for part in tile.parts} == {tile.role}
        assert not own.keys() & found.keys()
        found |= own
    assert found == wanted


def neighbours(count: int, file: str = "f", numel: int = 1) -> list[RangeCopy]:
    return [
        RangeCopy(
            Key(f"w{i}", "param"),
            Range(0, numel, file, 4 * numel * i),
            FLOAT32,
            FLOAT32,
            (Range(0, numel, f"s{i}", 0),),
        )
        for i in range(count)
    ]


def test_neighbours_share_a_tile_and_tiles_end_at_multiples_of_their_size() -> None:
    tiles = list(tiles_of(neighbours(10, numel=10), 128))
    assert [(tile.offset, tile.nbytes) for tile in tiles] == [
        (0, 128),
        (128, 128),
        (256, 128),
        (384, 16),
    ]


def test_a_tile_does_not_collect_pieces_without_end() -> None:
    tiles = list(tiles_of(neighbours(3 * MAX_PIECES), 2**20))
    assert [len(tile.parts) for tile in tiles] == [MAX_PIECES] * 3


def test_a_file_that_is_complete_waits_for_no_other() -> None:
    copies = [*neighbours(2, "first"), *neighbours(2, "second")]
    tiles = tiles_of(iter(copies), 2**20, {"first": 8, "second": 8})
    assert next(tiles).file == "first"
    waiting = tiles_of(iter([*copies, *neighbours(1, "third", 2**18 + 1)]), 2**20)
    assert next(waiting).file == "third"


def test_boxes_are_cut_to_what_fits_in_either_type() -> None:
    chunk = Chunk(Box((0, 0), (4, 8)), "s", 0, (1, 4))
    target = Chunk(chunk.box, "f", 100)
    copy = Copy(Key("w", "param"), target, FLOAT32, BFLOAT16, (ChunkBox(chunk, chunk.box),))
    tiles = list(tiles_of([copy], 64))
    assert [(tile.offset, tile.nbytes) for tile in tiles] == [(100, 32), (132, 32)]
    assert tiles[1].key_of(31) == copy.key


def tile(file: str, offset: int) -> Tile:
    return Tile(file, offset, 1, FLOAT32, FLOAT32, [])


@given(st.lists(st.sampled_from("abc"), max_size=300))
def test_alternating_keeps_the_order_within_each_file(files: list[str]) -> None:
    given = [tile(file, number) for number, file in enumerate(files)]
    found = list(alternate_files(iter(given)))
    assert sorted(found, key=lambda each: each.file) == sorted(given, key=lambda each: each.file)


def test_neighbouring_tiles_are_of_different_files() -> None:
    given = [tile(file, number) for file in "abcd" for number in range(16)]
    found = [each.file for each in alternate_files(iter(given))]
    assert found == [*"abcd"] * 16


def test_alternating_reads_few_tiles_ahead() -> None:
    endless = (tile("a", number) for number in count())
    found = alternate_files(endless)
    assert [next(found).offset for _ in range(1000)] == [*range(1000)]
    assert next(endless).offset < 1100
