from __future__ import annotations

from collections.abc import Iterator

from zerotools.io.stores.store_interface import FarDirectory, FarObject
from zerotools.io.stores.store_listing import StoreListing


class Counted:
    """A store of names, which counts what it is asked."""

    url = "memory://"
    lists_below = True

    def __init__(self, *keys: str) -> None:
        self.keys = keys
        self.asked: list[str] = []

    def directory(self, key: str) -> FarDirectory:
        self.asked.append(f"list {key}")
        start = f"{key}/" if key else ""
        rests = [each[len(start) :] for each in self.keys if each.startswith(start)]
        return FarDirectory(
            {rest: FarObject(start + rest, 1, "e") for rest in rests if "/" not in rest},
            frozenset(rest.partition("/")[0] for rest in rests if "/" in rest),
        )

    def below(self, key: str) -> Iterator[FarObject]:
        self.asked.append(f"below {key}")
        start = f"{key}/" if key else ""
        return (FarObject(each, 1, "e") for each in self.keys if each.startswith(start))

    def head(self, key: str) -> FarObject | None:
        self.asked.append(f"head {key}")
        return FarObject(key, 1, "e") if key in self.keys else None

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        raise AssertionError("nothing is read")


def test_what_lies_in_a_listed_directory_is_not_asked_for_again() -> None:
    store = Counted("run/a", "run/b/c")
    listing = StoreListing(store)
    assert listing.is_directory("run")
    assert listing.names("run") == ["a", "b"]
    assert listing.object("run/a")
    assert listing.object("run/x") is None
    assert listing.is_directory("run/b")
    assert not listing.is_directory("run/x")
    assert store.asked == ["list run"]


def test_of_many_directories_all_is_listed_at_once() -> None:
    keys = [f"run/zero/{number}/fp32.pt" for number in range(100)]
    store = Counted("run/latest", *keys)
    listing = StoreListing(store)
    assert [key for key in keys if listing.object(key) and listing.names(key.rpartition("/")[0])]
    assert store.asked[-1] == "below run/zero"
    assert len(store.asked) < 10
    assert [each.key for each in listing.below("run/zero")] == sorted(keys)
    assert not listing.is_directory("run/zero/x")
    assert not listing.object("run/zero/1/x")
    assert len(store.asked) < 10


def test_an_object_alone_takes_two_requests_and_no_listing_of_its_directory() -> None:
    store = Counted("run/model.safetensors")
    listing = StoreListing(store)
    for _ in range(3):
        assert not listing.is_directory("run/model.safetensors")
        assert listing.object("run/model.safetensors")
        assert listing.object("run/none") is None
    assert store.asked == [
        "list run/model.safetensors",
        "head run/model.safetensors",
        "head run/none",
    ]


def test_what_is_forgotten_is_asked_for_again() -> None:
    store = Counted("run/a")
    listing = StoreListing(store)
    assert listing.names("run") == ["a"]
    store.keys = ("run/a", "run/b")
    assert listing.names("run") == ["a"]
    listing.forget("ru")
    listing.forget("other/run")
    assert listing.names("run") == ["a"]
    for key in ("run/a", "run", "run/b", ""):
        listing.forget(key)
        assert listing.names("run") == ["a", "b"]
    asked = len(store.asked)
    assert listing.names("run")
    assert len(store.asked) == asked


def test_so_is_a_part_of_what_was_listed_at_once() -> None:
    store = Counted("run/a/x", "run/b/x", "run/c/x", "run/d/x")
    listing = StoreListing(store)
    assert len(list(listing.below("run"))) == 4
    store.keys = ("run/a/x",)
    listing.forget("run/b")
    assert not listing.is_directory("run/b")
    assert [each.key for each in listing.below("run")] == ["run/a/x"]
