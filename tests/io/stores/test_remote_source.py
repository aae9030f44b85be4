from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.io.stores.far import far, troubled
from zerotools.core.errors import BadFile
from zerotools.io.stores import remote_source
from zerotools.io.stores.remote_source import (
    FIRST_BLOCK,
    LARGEST_BLOCK,
    LARGEST_PIECE,
    MOST_TOO_MANY,
    RemoteSource,
    status_of,
)
from zerotools.io.stores.store_interface import FarDirectory, FarObject

DATA = random.Random(0).randbytes(12 * 2**20)


class Memory:
    """A store of one object, which notes the ranges that are asked for."""

    lists_below = True

    def __init__(self, data: bytes, url: str) -> None:
        self.url = url
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def directory(self, key: str) -> FarDirectory:
        raise AssertionError("nothing is listed")

    def below(self, key: str) -> Iterator[FarObject]:
        raise AssertionError("nothing is listed")

    def head(self, key: str) -> FarObject | None:
        return FarObject(key, len(self.data), "etag")

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        if not self.data:
            raise BadFile("it is gone")
        assert 0 <= begin < end <= found.size
        self.asked.append((begin, end))
        return memoryview(self.data[begin:end])


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Memory:
    return Memory(DATA, f"memory://{request.node.name}")


def opened(store: Memory) -> RemoteSource:
    return RemoteSource(store, FarObject("a", len(store.data), "etag"))


def test_any_read_gives_the_bytes_of_the_object(store: Memory) -> None:
    source, draw = opened(store), random.Random(1)
    for _ in range(300):
        begin = draw.choice([0, draw.randrange(len(DATA)), len(DATA) - draw.randrange(9)])
        count = draw.choice([0, 1, 30, FIRST_BLOCK, draw.randrange(3 * 2**20)])
        assert source.read(count, begin) == DATA[begin : begin + count]
        view = memoryview(bytearray(count))
        found = source.read_into(view, begin)
        assert view[:found] == DATA[begin : begin + count]
    assert source.read(10, len(DATA)) == b""
    assert source.read_into(memoryview(b""), 0) == 0
    with source.stream() as stream:
        assert stream.read() == DATA
    with source.stream() as stream:
        stream.seek(-5, 2)
        assert stream.read() == DATA[-5:]


def test_small_reads_near_one_another_are_one_request(store: Memory) -> None:
    source = opened(store)
    for at in range(0, FIRST_BLOCK, 1000):
        source.read(30, at)
    source.read(22, len(DATA) - 22)
    source.read(500, len(DATA) - 522)
    assert len(store.asked) == 2


def test_what_is_read_from_end_to_end_takes_few_requests(store: Memory) -> None:
    source = opened(store)
    for at in range(0, len(DATA), 4096):
        source.read(4096, at)
    sizes = [end - begin for begin, end in store.asked]
    assert sizes[0] == FIRST_BLOCK
    assert max(sizes) == LARGEST_BLOCK
    assert len(sizes) < 12


def test_a_large_read_is_made_of_pieces_and_not_kept(store: Memory) -> None:
    source = opened(store)
    for _ in range(2):
        assert source.read(len(DATA), 0) == DATA
    assert len(store.asked) == 4
    assert max(end - begin for begin, end in store.asked) == LARGEST_PIECE


def test_neighbours_are_one_request_unless_they_are_far_apart(store: Memory) -> None:
    ranges = [(0, 100_000), (150_000, 250_000), (5_000_000, 5_200_000)]
    found = opened(store).fetch(ranges)()
    assert [b"".join(parts) for parts in found] == [DATA[a:b] for a, b in ranges]
    assert sorted(store.asked) == [(0, 250_000), (5_000_000, 5_200_000)]


def test_of_many_small_ranges_no_more_than_twice_the_bytes_are_held(store: Memory) -> None:
    ranges = [(at, at + 2000) for at in range(0, 10 * 2**20, 100_000)]
    found = opened(store).fetch(ranges)()
    assert [b"".join(parts) for parts in found] == [DATA[a:b] for a, b in ranges]
    assert sum(b - a for a, b in store.asked) <= MOST_TOO_MANY * 2000 * len(ranges)


def test_what_is_expected_is_read_from_memory(store: Memory) -> None:
    source = opened(store)
    places = [(at, at + 1000) for at in range(0, 10 * 2**20, 2**20)]
    source.expect(places)
    before = len(store.asked)
    for begin, end in places:
        assert source.read(end - begin, begin) == DATA[begin:end]
    assert len(store.asked) == before == len(places)


def test_an_error_of_one_range_is_that_of_all(store: Memory) -> None:
    source = opened(store)
    store.data = b""
    with pytest.raises(BadFile, match="gone"):
        source.fetch([(0, 10), (9_000_000, 9_000_010)])()
    with pytest.raises(BadFile, match="gone"):
        source.read(10, 0)


def test_the_blocks_that_are_kept_are_bounded(store: Memory) -> None:
    for number in range(30):
        other = RemoteSource(store, FarObject(f"a{number}", len(DATA), "etag"))
        for at in range(0, len(DATA), 2**20):
            other.read(10, at)
            other.read(FIRST_BLOCK, at + 20)
    assert remote_source._KEEPING._bytes <= remote_source.KEPT


def test_the_status_tells_other_bytes_by_the_etag() -> None:
    one, same = status_of(FarObject("a", 5, "x")), status_of(FarObject("b", 5, "x"))
    assert one == same
    assert one.st_size == 5
    assert one.st_blocks == 1
    assert status_of(FarObject("a", 5, "y")).st_ino != one.st_ino
    plain = status_of(FarObject("a", 5, "", modified=1.0))
    assert plain.st_ino != status_of(FarObject("a", 5, "", modified=2.0)).st_ino


def test_files_of_one_kind_are_asked_for_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    with troubled(monkeypatch) as (store, proxy):
        for number in range(60):
            store.put(f"run/rank_{number:02}.pt", bytes([number]) * 200_000)
        store.put("run/config.json", b"{}")
        paths = sorted(far("run").glob("*.pt"))
        assert far("run/config.json").open_source().read(2, 0) == b"{}"
        proxy.reset()
        for number, path in enumerate(paths):
            source = path.open_source()  # type: ignore[attr-defined]
            assert source.read(100, 0) == bytes([number]) * 100
            assert source.read(100, 199_900) == bytes([number]) * 100
        # One of each file (its ends are near one another), but two of the first two.
        assert proxy.counts == {"range": len(paths) + 2}


def test_one_that_cannot_be_had_is_told_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from zerotools.core.errors import BadFile

    with troubled(monkeypatch) as (store, _):
        for number in range(4):
            store.put(f"run/rank_{number}.pt", b"x" * 1000)
        paths = sorted(far("run").glob("*.pt"))
        del store.objects["checkpoints"]["run/rank_3.pt"]
        for path in paths[:3]:
            assert path.open_source().read(1, 0) == b"x"  # type: ignore[attr-defined]
        with pytest.raises(BadFile, match=r"rank_3\.pt changed while it was read: it is gone"):
            paths[3].open_source().read(1, 0)  # type: ignore[attr-defined]
