"""Trees survive our writer and reader, and Python's own pickle on either side."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.matrices import FULL
from zerotools.core import dtypes
from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import Unsupported
from zerotools.io.torchzip.pickle_values import Global, Ordered, Size, Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps
from zerotools.io.torchzip.unpickle import loads

KEYS = st.one_of(
    st.text(max_size=8), st.integers(-(2**40), 2**40), st.booleans(), st.binary(max_size=4),
    st.tuples(st.text(max_size=3), st.integers(0, 9)),
)  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(),
    st.integers(2**900, 2**1015 - 1), st.frozensets(st.integers(0, 9)),
    st.sets(st.text(max_size=2)),
    st.binary(max_size=3).map(bytearray),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.tuples(inner, inner),
        st.lists(inner, max_size=2).map(tuple),
    ),
    max_leaves=30,
)


@given(TREES, st.integers(2, 5))
def test_we_read_what_pickle_writes(tree: Any, protocol: int) -> None:
    assert loads(pickle.dumps(tree, protocol), source="t") == tree


@given(TREES)
def test_pickle_reads_what_we_write(tree: Any) -> None:
    data = dumps(tree)
    assert pickle.loads(data) == tree
    assert loads(data, source="t") == tree


def test_a_list_that_holds_itself_and_a_tuple_that_does() -> None:
    ring: list[Any] = []
    ring.append((ring, 1))
    read = loads(pickle.dumps(ring), source="t")
    assert read[0][0] is read
    again = pickle.loads(dumps(read[0]))
    assert again[0][0] is again


def test_shared_parts_stay_shared() -> None:
    part = [1]
    read = pickle.loads(dumps({"a": part, "b": part}))
    assert read["a"] is read["b"]


def test_depth_and_sharing_are_no_limit() -> None:
    deep: Any = []
    for _ in range(100_000 if FULL else 20_000):
        deep = [deep, deep]
    data = dumps(deep)
    assert dumps(loads(data, source="t")) == data


def test_a_foreign_object_stays_what_it_was() -> None:
    path = PurePosixPath("a/b")
    read = loads(pickle.dumps({"p": path}, 4), source="t")
    assert isinstance(read["p"], Opaque)
    _, args = path.__reduce__()  # ("a", "b"), and since Python 3.14 ("a/b",)
    assert (read["p"].name, read["p"].args, read["p"].called) == ("PurePosixPath", args, True)
    assert pickle.loads(dumps(read)) == {"p": path}


class Point:
    """Pickled by NEWOBJ with a state."""

    def __init__(self, x: int) -> None:
        self.x = x
        self.me = self


class Bag(list[int]):
    """A list subclass with attributes."""


class Keyed:
    """Pickled by NEWOBJ_EX."""

    def __new__(cls, *, size: int) -> Keyed:
        self = super().__new__(cls)
        self.size = size
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"size": self.size}


def test_an_object_with_state_and_a_cycle() -> None:
    read = loads(pickle.dumps(Point(3)), source="t")
    assert isinstance(read, Opaque)
    assert not read.called
    assert read.state["me"] is read
    again = pickle.loads(dumps(read))
    assert (again.x, again.me) == (3, again)


def test_a_list_subclass_and_keyword_arguments() -> None:
    bag = Bag([1, 2])
    bag.label = "x"  # type: ignore[attr-defined]
    read = loads(pickle.dumps(bag), source="t")
    assert read.appended == [1, 2]
    again = pickle.loads(dumps(read))
    assert (type(again), again, again.label) == (Bag, [1, 2], "x")
    keyed = pickle.loads(dumps(loads(pickle.dumps(Keyed(size=4), 4), source="t")))
    assert keyed.size == 4


def test_an_ordered_dict_keeps_its_attributes() -> None:
    state: Any = OrderedDict(b=1, a=2)
    state._metadata = {"version": 1}
    read = loads(pickle.dumps(state, 2), source="t")
    assert isinstance(read, Ordered)
    assert read.attributes == {"_metadata": {"version": 1}}
    again = pickle.loads(dumps(read))
    assert list(again) == ["b", "a"]
    assert again._metadata == {"version": 1}


def test_names_are_values_and_are_not_imported() -> None:
    read = loads(b"\x80\x02cno_such_module\nThing\n.", source="t")
    assert read == Global("no_such_module", "Thing")
    assert dumps(read) == b"\x80\x02cno_such_module\nThing\nq\x00."


class _Torchlike(pickle.Unpickler):
    """Reads persistent ids and torch's names as plain tuples."""

    def persistent_load(self, pid: Any) -> Any:
        return pid

    def find_class(self, module: str, name: str) -> Any:
        return lambda *args: (f"{module}.{name}", args)


def test_a_tensor_is_written_as_torch_writes_it() -> None:
    tensor = StoredTensor(
        Storage("0", dtypes.FLOAT32, 12), dtypes.FLOAT32, 0, (3, 4), (4, 1), False
    )
    data = dumps(tensor)
    name, args = _Torchlike(io.BytesIO(data)).load()
    assert name == "torch._utils._rebuild_tensor_v2"
    assert args[0][2:] == ("0", "cpu", 12)
    assert args[1:5] == (0, (3, 4), (4, 1), False)
    assert loads(data, source="t") == tensor


def test_an_untyped_storage_names_the_element_type() -> None:
    tensor = StoredTensor(Storage("0", None, 6), dtypes.FLOAT8_E5M2, 1, (5,), (1,))
    assert loads(dumps(tensor), source="t") == tensor


def test_a_torch_size_is_not_a_tuple() -> None:
    read = loads(dumps({"size": Size((2, 3)), "path": (2, 3)}), source="t")
    assert type(read["size"]) is Size
    assert type(read["path"]) is tuple


@pytest.mark.parametrize("value", [object(), 1j, Global("a\nb", "c")])
def test_what_cannot_be_written_is_refused(value: Any) -> None:
    with pytest.raises(Unsupported):
        dumps([value])
