"""Classes of the fast decorator behave like those of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.fast_dataclass import fast_dataclass

ROOT = Path(__file__).parents[2]
LIBRARY_ALONE = (
    "daemon/zerotoolsd/supervisor",
    "zerotools/core/fast_dataclass.py",
    "zerotools/integrations",
    "zerotools/io/telemetry",
)
"""They are imported by other interpreters, and take the decorator of the library."""
LIBRARYS = re.compile(r"^from dataclasses import (.*\W)?dataclass\b", re.MULTILINE)
NAMES = ("a", "b", "name", "cls", "value", "other", "_x")
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "default": {"default": 7},
    "factory": {"default_factory": list},
    "keyword": {"kw_only": True},
    "hidden": {"repr": False},
    "not compared": {"compare": False},
    "later": {"init": False},
    "later, default": {"init": False, "default": 3},
    "later, factory": {"init": False, "default_factory": dict},
}
VALUES = st.one_of(st.integers(0, 1), st.just(float("nan")), st.lists(st.none(), max_size=1))


class Plain:
    """A base class without fields."""

    def __post_init__(self) -> None:
        self.__dict__["is_done"] = True


def made(decorator: Any, kinds: Mapping[str, str], options: Mapping[str, bool]) -> Any:
    body: dict[str, Any] = {name: field(**FIELDS[kind]) for name, kind in kinds.items()}
    base = object if options.get("slots") else Plain
    return decorator(**options)(type("Thing", (base,), {**body, "__annotations__": kinds}))


def result(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (AttributeError, TypeError, ValueError) as error:
        return type(error), str(error)


def facts(
    cls: Any, calls: list[tuple[list[Any], dict[str, Any]]], changes: dict[str, Any]
) -> Iterator[Any]:
    """All that a program can ask of a class and of its objects."""
    yield [(each.name, each.type, each.kw_only, each.init) for each in fields(cls)]
    yield [name for name in NAMES if hasattr(cls, name)]
    yield cls.__match_args__, cls.__hash__ is None, cls.__hash__ is object.__hash__
    yield str(inspect.signature(cls)), cls.__init__.__annotations__
    names = [each.name for each in fields(cls)]
    objects = []
    for arguments, keywords in calls:
        one = result(lambda a=arguments, k=keywords: cls(*a, **k))
        if isinstance(one, cls):
            objects.append(one)
        else:
            yield one
    for one in objects:
        yield result(lambda one=one: repr(one)), getattr(one, "__dict__", None)
        yield [result(lambda one=one, other=other: one == other) for other in [*objects, 1]]
        yield cls.__hash__ is object.__hash__ or result(
            lambda one=one: hash(one) == hash(copy.copy(one))
        )
        yield result(lambda one=one: repr(asdict(one)))
        yield result(lambda one=one: repr(replace(one, **changes)))
        yield result(lambda one=one: repr(copy.copy(one)))
        yield [result(lambda one=one, name=name: delattr(one, name)) for name in names]
        yield [result(lambda one=one, name=name: setattr(one, name, 5)) for name in names]
        yield result(lambda one=one: repr(one))


@given(
    kinds=st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*FIELDS])),
    options=st.dictionaries(st.sampled_from(["eq", "frozen", "kw_only", "slots"]), st.booleans()),
    calls=st.lists(
        st.tuples(
            st.lists(VALUES, max_size=3),
            st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=7),
        ),
        max_size=3,
    ),
    changes=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2),
)
def test_it_behaves_as_the_librarys(
    kinds: dict[str, str],
    options: dict[str, bool],
    calls: list[tuple[list[Any], dict[str, Any]]],
    changes: dict[str, Any],
) -> None:
    # Fields without a default come first.
    kinds = dict(
        sorted(
            kinds.items(),
            key=lambda each: not {"default", "default_factory"}.isdisjoint(FIELDS[each[1]]),
        )
    )
    calls = [
        *calls,
        ([], {name: 0 for name, kind in kinds.items() if not kind.startswith("later")}),
    ]
    expected = made(dataclasses.dataclass, kinds, options)
    found = made(fast_dataclass, kinds, options)
    for one, other in zip(
        facts(found, calls, changes), facts(expected, calls, changes), strict=True
    ):
        assert one == other


T = TypeVar("T")


@fast_dataclass(frozen=True, slots=True)
class Slotted(Generic[T]):
    """Has slots."""

    first: T
    rest: tuple[Any, ...] = ()


@fast_dataclass(frozen=True)
class Derived(Slotted[int]):
    """Has a field of its own."""

    more: int = 0

    def __repr__(self) -> str:
        return "own"


@fast_dataclass
class Own:
    """Defines methods of its own."""

    value: int
    links: list[Any] = field(default_factory=list)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 3


def test_objects_are_pickled_before_and_after_the_first_is_made() -> None:
    written = pickle.dumps(Derived(1, (2,), more=3))
    read = pickle.loads(written)
    assert (read, read.more, read.rest) == (Derived(1, (2,), more=3), 3, (2,))
    assert pickle.loads(pickle.dumps(Slotted("a"))) == Slotted("a")


def test_methods_of_the_class_are_kept() -> None:
    own = Own(1)
    assert hash(own) == 3
    assert own == Own(2)
    assert repr(Derived(1)) == "own"
    own.links.append(own)
    assert repr(own) == "Own(value=1, links=[...])"
    assert Own(1).links == []


def test_match_takes_fields_by_place() -> None:
    match Derived(1, more=2):
        case Derived(first, rest, more):
            assert (first, rest, more) == (1, (), 2)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'unknown'"):
        Derived(1).unknown = 1


def test_a_subclass_of_a_frozen_class_has_attributes_of_its_own() -> None:
    class Below(Derived):
        pass

    below = Below(1)
    below.note = "x"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'more'"):
        del below.more
    assert (below.note, below == Derived(1)) == ("x", False)


def test_modules_that_a_command_imports_take_the_fast_one() -> None:
    taken = [
        path.relative_to(ROOT).as_posix()
        for folder in ("zerotools", "daemon")
        for path in (ROOT / folder).rglob("*.py")
        if LIBRARYS.search(path.read_text("utf-8"))
    ]
    others = [name for name in taken if not name.startswith(LIBRARY_ALONE)]
    assert not others, "import dataclass from zerotools.core.fast_dataclass"
