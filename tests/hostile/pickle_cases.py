"""Pickles that call, and pickles that fill the memory or the time, in a .bin of a model."""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

from tests.hostile.archives import sparse_archive, state_dict
from tests.hostile.case import READ, VERIFY, Case, Make
from tests.io.torchzip.archives import zip_bytes
from zerotools.core.checkpoint import Opaque

MODEL = "pytorch_model.bin"
GIGABYTE = 10**9
OWN: dict[str, Any] = {}
OWN["a"] = OWN


class Calls:
    """Pickles as a call of anything."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


class Made:
    """Pickles as an object whose state is set afterwards."""

    def __init__(self, function: Any, args: tuple[Any, ...], state: Any) -> None:
        self._parts = function, args, state

    def __reduce__(self) -> Any:
        return self._parts


def pickled(data: bytes) -> Make:
    """A file whose pickle is `data`."""

    def make(directory: Path) -> Path:
        (directory / MODEL).write_bytes(zip_bytes({"a/data.pkl": data, "a/version": b"3\n"}))
        return directory

    return make


def calling(tree: Any) -> Make:
    """A file of what pickle makes of `tree`."""
    return pickled(pickle.dumps(tree, 4))


def beside_a_weight(value: Any) -> Make:
    """A sound weight, and `value`."""

    def make(directory: Path) -> Path:
        (directory / MODEL).write_bytes(state_dict({"evil": value}))
        return directory

    return make


def _sparse(directory: Path) -> Path:
    opcode = b"\x80\x04\x8e" + struct.pack("<Q", GIGABYTE)
    sparse_archive(directory / MODEL, opcode, len(opcode) + GIGABYTE + 1)
    return directory


MARK = Path(tempfile.gettempdir()) / "zerotools-hostile-mark"
TOUCH = f"touch {MARK}"
NOT_RUN = "it holds a pickled posix.system, not weights"
NONE = "holds no tensors"
FILLS = "made to fill the memory; do not use it"
TEXT = b"X\x01\x00\x00\x00a"
REBUILD = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n"
GLOBALS = b"X\x0b\x00\x00\x00__globals__"

CASES = (
    Case("os.system in place of the weights", calling(Calls(os.system, TOUCH)), NOT_RUN, status=4),
    Case(
        "eval in place of the weights",
        calling(Calls(eval, "open('x', 'w')")),
        "it holds a pickled builtins.eval, not weights",
        status=4,
    ),
    Case(
        "exec of a program",
        calling(Calls(exec, f"import os; os.system({TOUCH!r})")),
        "it holds a pickled builtins.exec, not weights",
        status=4,
    ),
    Case(
        "a call within the arguments of a call",
        calling(Calls(print, Calls(os.system, TOUCH))),
        "it holds a pickled builtins.print, not weights",
        status=4,
    ),
    Case(
        "a call whose result is called",
        pickled(b"\x80\x02cos\nsystem\n)R)R."),
        "it calls a Opaque",
    ),
    Case("a call deep in a list", calling({"w": [[[Calls(os.system, TOUCH)]]]}), NONE),
    Case("a call as a key", calling({Calls(len, "ab"): 1}), NONE),
    Case(
        "a call beside a weight",
        beside_a_weight(Opaque("posix", "system", (TOUCH,), called=True)),
        "is whole: 1 tensor",
        VERIFY,
        status=0,
    ),
    Case(
        "a state that BUILD sets",
        calling({"w": Made(Calls, (1,), {"__class__": os.system})}),
        NONE,
    ),
    Case(
        "a state that BUILD sets on a function",
        pickled(REBUILD + b"}" + TEXT + b"K\x01sb."),
        "it sets the state of a Global twice, or to a value",
    ),
    Case(
        "an attribute of a name that is known",
        pickled(b"\x80\x04\x8c\x0ctorch._utils\x8c\x1e_rebuild_tensor_v2.__globals__\x93)R."),
        "a pickled torch._utils._rebuild_tensor_v2.__globals__, not weights",
        status=4,
    ),
    Case(
        "getattr of a name that is known",
        pickled(b"\x80\x02cbuiltins\ngetattr\n" + REBUILD[2:] + GLOBALS + b"\x86R)R."),
        "a pickled torch._utils._rebuild_tensor_v2.__globals__, not weights",
        status=4,
    ),
    Case(
        "INST, which calls at once",
        pickled(b"(ios\nsystem\n."),
        "opcode 0x69 is not one that checkpoints use",
        status=4,
    ),
    Case(
        "a tensor that is made of no storage",
        pickled(REBUILD + b"(NK\x00))\x89NtR."),
        "it rebuilds a tensor from something that is not a storage",
    ),
    Case(
        "100,000 tuples in one another",
        pickled(b"\x80\x02}" + TEXT + b"N" + b"\x85" * 10**5 + b"s."),
        NONE,
        READ,
    ),
    Case("3 million open marks", pickled(b"\x80\x02" + b"(" * 3_000_000), FILLS, READ),
    Case(
        "a memo entry of number 2 ** 32 - 1",
        pickled(b"\x80\x02}" + TEXT + b"K\x05r\xff\xff\xff\xff0j\xff\xff\xff\xffs."),
        NONE,
    ),
    Case("3 million memo entries", pickled(b"\x80\x04N" + b"\x94" * 3_000_000), FILLS, READ),
    Case("3 million dicts", pickled(b"\x80\x04" + b"}" * 3_000_000), FILLS, READ),
    Case(
        "text that says it has 2 ** 62 bytes",
        pickled(b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x."),
        f"{2**62} bytes are announced, but 2 follow",
    ),
    Case("a gigabyte of x, in a file of that size", _sparse, FILLS),
    Case(
        "a number of 2 ** 31 bytes",
        pickled(b"\x80\x02\x8b\xff\xff\xff\x7f."),
        "2147483647 bytes are announced",
    ),
    Case(
        "a tuple that doubles 200 times, as a key",
        pickled(b"\x80\x02}K\x01" + b"2\x86" * 200 + b"Ns."),
        "a dict key has more than 256 parts",
    ),
    Case("a dict that holds itself", calling(OWN), NONE),
)
