"""Pickles made to run code, exhaust memory or hang: each is refused, or read as plain data."""

from __future__ import annotations

import os
import pickle
import resource
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import BadFile, Unsupported, ZerotoolsError
from zerotools.io.torchzip.pickle_values import Global
from zerotools.io.torchzip.pickle_writer import dumps
from zerotools.io.torchzip.unpickle import loads


class Calls:
    """Pickles as a call of anything."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


def test_a_pickled_command_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    read = loads(pickle.dumps(Calls(os.system, f"touch {mark}")), source="t")
    assert isinstance(read, Opaque)
    assert (read.module, read.name, read.called) == ("posix", "system", True)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["eval", "exec", "getattr", "__import__", "open", "type", "object", "list"]
)
def test_builtins_are_not_called(name: str) -> None:
    data = f"\x80\x02cbuiltins\n{name}\nX\x01\x00\x00\x001\x85R.".encode("latin-1")
    assert isinstance(loads(data, source="t"), Opaque)


REFUSED = {
    "a call of a result": b"\x80\x02cos\nsystem\n)R)R.",
    "a call of text": b"\x80\x02X\x01\x00\x00\x00a)R.",
    "a call of an element type": b"\x80\x02ctorch\nfloat32\n)R.",
    "arguments that are not tuple": b"\x80\x02cos\nsystem\n]R.",
    "an instance of text": b"\x80\x04\x8c\x01a)\x81.",
    "state of a dict": b"\x80\x02}}b.",
    "state of a class": b"\x80\x02cos\nsystem\n}b.",
    "state of text": b"\x80\x02X\x01\x00\x00\x00a}b.",
    "appending to a dict": b"\x80\x02}K\x01a.",
    "appending to a tuple": b"\x80\x02)K\x01a.",
    "items of a list": b"\x80\x02]K\x01K\x02s.",
    "a key without value": b"\x80\x02}(K\x01u.",
    "adding to a list": b"\x80\x04](K\x01\x90.",
    "an unhashable key": b"\x80\x02}]K\x02s.",
    "an extension code": b"\x80\x02\x82\x01.",
    "an instance by INST": b"(ios\nsystem\n.",
    "an out-of-band buffer": b"\x80\x05\x97.",
    "a persistent name": b"\x80\x02Pname\n.",
    "protocol 6": b"\x80\x06N.",
    "nothing": b"",
    "no stop": b"\x80\x02N",
    "an empty stack": b"\x80\x02.",
    "two values": b"\x80\x02NN.",
    "an open mark": b"\x80\x02(N.",
    "a mark that is not there": b"\x80\x02Nt.",
    "a memo entry that is not there": b"\x80\x02h\x07.",
    "too few for a tuple": b"\x80\x02N\x87.",
    "text that is not UTF-8": b"\x80\x02X\x01\x00\x00\x00\xff.",
    "a storage that is none": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "a tensor without a storage": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))\x89NtR.",
    "a tensor without arguments": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "a size of text": b"\x80\x02ctorch\nSize\nX\x01\x00\x00\x00a\x85R.",
    "a negative size": b"\x80\x02ctorch\nSize\nJ\xff\xff\xff\xff\x85\x85R.",
    "an ordered dict of numbers": b"\x80\x02ccollections\nOrderedDict\n](K\x01e\x85R.",
    "a set of lists": b"\x80\x02cbuiltins\nset\n]]a\x85R.",
    "a huge text": b"\x80\x02X\xff\xff\xff\xffa.",
    "a huge byte string": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".",
    "a huge byte array": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
    "a negative length": b"\x80\x02T" + struct.pack("<i", -5) + b".",
    "a huge integer": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "a key of many bits": b"\x80\x02}\x8a\x09" + b"\xff" * 8 + b"\x00N" + b"s.",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_what_no_checkpoint_does(data: bytes) -> None:
    with pytest.raises((BadFile, Unsupported)) as caught:
        loads(data, source="evil/.metadata")
    assert str(caught.value).startswith("evil/.metadata: ")


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Lets the process grow by 256 MiB, so that a bomb is an error here and not a dead machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("index", [2**28, 2**31 - 1, 2**32 - 1])
def test_a_huge_memo_index_costs_nothing(index: int) -> None:
    number = struct.pack("<I", index)
    assert loads(b"\x80\x02K\x05r" + number + b"0j" + number + b".", source="t") == 5


BOMBS = {
    "dicts": b"}",
    "sets": b"\x8f",
    "memo entries": b"\x94",
    "remembered dicts": b"}\x94",
}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_pickle_of_many_objects_does_not_fill_the_memory(bomb: bytes) -> None:
    data = b"\x80\x04cos\nsystem\nq\x00" + bomb * (20_000_000 // len(bomb)) + b"."
    with pytest.raises(BadFile, match="made to fill the memory"):
        loads(data, source="t")


def test_a_large_checkpoint_is_far_from_that_limit() -> None:
    names = [f"model.layers.{number}.mlp.weight" for number in range(20_000)]
    groups = [{"params": [number], "lr": 1e-3, "betas": (0.9, 0.99)} for number in range(20_000)]
    tree = {"names": names, "groups": groups, "state": {n: {"step": float(n)} for n in range(9999)}}
    assert loads(dumps(tree), source="t") == tree
    assert loads(pickle.dumps(tree, 4), source="t") == tree


@pytest.mark.usefixtures("little_memory")
def test_depth_is_data_and_not_a_stack() -> None:
    read = loads(b"\x80\x02" + b"(" * 100_000 + b"N" + b"t" * 100_000 + b".", source="t")
    assert dumps(read)


def test_a_deep_key_is_not_hashed() -> None:
    data = b"\x80\x02}N" + b"\x85" * 1_000_000 + b"Ns."
    with pytest.raises(BadFile, match="a dict key has more than"):
        loads(data, source="t")


def test_a_key_that_doubles_at_every_level_is_not_hashed() -> None:
    data = b"\x80\x02}K\x01" + b"2\x86" * 200 + b"Ns."
    with pytest.raises(BadFile, match="a dict key has more than"):  # else this never ends
        loads(data, source="t")


def test_a_tree_that_doubles_at_every_level_is_written_in_its_own_size() -> None:
    read = loads(b"\x80\x02N" + b"2\x86" * 200 + b".", source="t")
    assert len(dumps(read)) < 5000


@given(st.binary(max_size=60))
def test_noise_gives_our_errors_only(data: bytes) -> None:
    with suppress(ZerotoolsError):
        loads(b"\x80\x04" + data + b".", source="t")


@given(st.data())
def test_a_damaged_pickle_gives_our_errors_only(data: st.DataObject) -> None:
    tree = {"a": [1, (2.0, None)], "b": {"c": b"xyz", "d": Global("os", "system")}}
    damaged = bytearray(dumps(tree))
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ZerotoolsError):
        loads(bytes(damaged), source="t")
