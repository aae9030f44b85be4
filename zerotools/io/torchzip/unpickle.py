"""Reading a pickle without running it.

The pickle machine below builds plain values and `Opaque`s. It has no way to import a module or to
call anything that the pickle names: REDUCE and NEWOBJ look the name up in `globals.BUILDERS`, a
handful of our own functions, and everything else becomes an `Opaque`.

A hostile pickle cannot exhaust memory either: sizes are checked against the bytes that are left,
the memo is a dict (a huge index costs nothing), nothing recurses into what was built, and a key
of a dict or set is hashed only after it was found small. Memory is a small multiple of the
pickle's length, which `limit` bounds.

Opcodes: CPython's Lib/pickletools.py. Those of protocols 0 and 1 that neither torch.save nor
pickle.dump (protocols 2 to 5) writes are refused, as are extension codes and out-of-band buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import BadFile, Unsupported, ZerotoolsError
from zerotools.io.torchzip.globals import call, make, resolve, storage
from zerotools.io.torchzip.keys import check_key
from zerotools.io.torchzip.values import Global, Ordered

LARGEST_PICKLE = 2**30


def loads(data: bytes, *, source: object) -> Any:
    """The tree that a pickle describes; `source` names it in messages.

    Raises:
        BadFile: the pickle is damaged or does what no saved checkpoint does.
        Unsupported: an opcode, storage or element type that zerotools does not know.
    """
    if len(data) > LARGEST_PICKLE:
        raise Unsupported(f"{source}: its pickle has {len(data)} bytes, the limit {LARGEST_PICKLE}")
    machine = _Machine(data)
    at = 0
    try:
        while not machine.done:
            at = _HANDLERS[data[at]](machine, at + 1)
        return machine.stack.pop()
    except ZerotoolsError as error:
        raise type(error)(f"{source}: its pickle, near byte {at}: {error}") from None
    except (IndexError, struct.error):
        raise BadFile(f"{source}: its pickle is cut short or damaged near byte {at}") from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadFile(f"{source}: its pickle is damaged near byte {at}: {error}") from None


class _Machine:
    """The pickle machine's state. `stack` is the part above the last mark."""

    __slots__ = ("data", "done", "memo", "stack", "under")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.done = False
        self.memo: dict[int, Any] = {}
        self.stack: list[Any] = []
        self.under: list[list[Any]] = []

    def above_mark(self) -> list[Any]:
        values = self.stack
        self.stack = self.under.pop()
        return values

    def take(self, at: int, size: int) -> bytes:
        if size < 0 or size > len(self.data) - at:
            raise BadFile(f"{size} bytes are announced and {len(self.data) - at} are left")
        return self.data[at : at + size]


_Handler = Callable[[_Machine, int], int]


# Text opcodes of protocol 0, INST, OBJ, LIST, DICT, extension codes and out-of-band buffers.
_REFUSED = frozenset(b"FILSVPdgilop\x82\x83\x84\x97\x98")


def _refuse(machine: _Machine, at: int) -> int:
    opcode = machine.data[at - 1]
    if opcode in _REFUSED:
        raise Unsupported(f"opcode 0x{opcode:02x} is none that checkpoints use")
    raise BadFile(f"byte 0x{opcode:02x} is no opcode: the pickle is damaged, or is none")


_HANDLERS: list[_Handler] = [_refuse] * 256


def _on(*opcodes: bytes) -> Callable[[_Handler], _Handler]:
    def register(handler: _Handler) -> _Handler:
        for opcode in opcodes:
            _HANDLERS[opcode[0]] = handler
        return handler

    return register


@_on(b"\x80")  # PROTO
def _proto(machine: _Machine, at: int) -> int:
    if machine.data[at] > 5:
        raise Unsupported(f"pickle protocol {machine.data[at]} is newer than 5")
    return at + 1


@_on(b"\x95")  # FRAME
def _frame(machine: _Machine, at: int) -> int:
    return at + 8


@_on(b".")
def _stop(machine: _Machine, at: int) -> int:
    if machine.under or len(machine.stack) != 1:
        raise BadFile("it stops with values left over")
    machine.done = True
    return at


@_on(b"(")
def _mark(machine: _Machine, at: int) -> int:
    machine.under.append(machine.stack)
    machine.stack = []
    return at


@_on(b"0")  # POP
def _pop(machine: _Machine, at: int) -> int:
    machine.stack.pop()
    return at


@_on(b"1")  # POP_MARK
def _pop_mark(machine: _Machine, at: int) -> int:
    machine.above_mark()
    return at


@_on(b"2")  # DUP
def _dup(machine: _Machine, at: int) -> int:
    machine.stack.append(machine.stack[-1])
    return at


def _constant(opcode: bytes, value: Any) -> None:
    def push(machine: _Machine, at: int) -> int:
        machine.stack.append(value)
        return at

    _HANDLERS[opcode[0]] = push


def _fresh(opcode: bytes, make_one: Callable[[], Any]) -> None:
    def push(machine: _Machine, at: int) -> int:
        machine.stack.append(make_one())
        return at

    _HANDLERS[opcode[0]] = push


def _number(opcode: bytes, layout: str) -> None:
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def push(machine: _Machine, at: int) -> int:
        machine.stack.append(unpack(machine.data, at)[0])
        return at + size

    _HANDLERS[opcode[0]] = push


def _sized(opcode: bytes, layout: str, decode: Callable[[bytes], Any]) -> None:
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def push(machine: _Machine, at: int) -> int:
        (length,) = unpack(machine.data, at)
        at += size
        machine.stack.append(decode(machine.take(at, length)))
        return at + int(length)

    _HANDLERS[opcode[0]] = push


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


_constant(b"N", None)
_constant(b"\x88", True)
_constant(b"\x89", False)
_constant(b")", ())
_fresh(b"]", list)
_fresh(b"}", dict)
_fresh(b"\x8f", set)
_number(b"K", "<B")
_number(b"M", "<H")
_number(b"J", "<i")
_number(b"G", ">d")
_sized(b"\x8a", "<B", _integer)  # LONG1
_sized(b"\x8b", "<i", _integer)  # LONG4
_sized(b"\x8c", "<B", _text)  # SHORT_BINUNICODE
_sized(b"X", "<I", _text)  # BINUNICODE
_sized(b"\x8d", "<Q", _text)  # BINUNICODE8
_sized(b"U", "<B", _text)  # SHORT_BINSTRING, of Python 2
_sized(b"T", "<i", _text)  # BINSTRING
_sized(b"C", "<B", bytes)  # SHORT_BINBYTES
_sized(b"B", "<I", bytes)  # BINBYTES
_sized(b"\x8e", "<Q", bytes)  # BINBYTES8
_sized(b"\x96", "<Q", bytearray)  # BYTEARRAY8


@_on(b"t")
def _tuple(machine: _Machine, at: int) -> int:
    values = machine.above_mark()
    machine.stack.append(tuple(values))
    return at


@_on(b"\x85", b"\x86", b"\x87")  # TUPLE1, TUPLE2, TUPLE3
def _short_tuple(machine: _Machine, at: int) -> int:
    count = machine.data[at - 1] - 0x84
    if len(machine.stack) < count:
        raise IndexError
    machine.stack[-count:] = [tuple(machine.stack[-count:])]
    return at


@_on(b"\x94")  # MEMOIZE
def _memoize(machine: _Machine, at: int) -> int:
    machine.memo[len(machine.memo)] = machine.stack[-1]
    return at


@_on(b"q")  # BINPUT
def _put(machine: _Machine, at: int) -> int:
    machine.memo[machine.data[at]] = machine.stack[-1]
    return at + 1


@_on(b"r")  # LONG_BINPUT
def _long_put(machine: _Machine, at: int) -> int:
    machine.memo[int.from_bytes(machine.take(at, 4), "little")] = machine.stack[-1]
    return at + 4


@_on(b"h")  # BINGET
def _get(machine: _Machine, at: int) -> int:
    machine.stack.append(machine.memo[machine.data[at]])
    return at + 1


@_on(b"j")  # LONG_BINGET
def _long_get(machine: _Machine, at: int) -> int:
    machine.stack.append(machine.memo[int.from_bytes(machine.take(at, 4), "little")])
    return at + 4


@_on(b"a")
def _append(machine: _Machine, at: int) -> int:
    value = machine.stack.pop()
    _extend(machine.stack[-1], [value])
    return at


@_on(b"e")
def _appends(machine: _Machine, at: int) -> int:
    values = machine.above_mark()
    _extend(machine.stack[-1], values)
    return at


@_on(b"s")
def _set_item(machine: _Machine, at: int) -> int:
    value = machine.stack.pop()
    key = machine.stack.pop()
    _update(machine.stack[-1], [key, value])
    return at


@_on(b"u")
def _set_items(machine: _Machine, at: int) -> int:
    values = machine.above_mark()
    _update(machine.stack[-1], values)
    return at


@_on(b"\x90")  # ADDITEMS
def _add_items(machine: _Machine, at: int) -> int:
    values = machine.above_mark()
    target = machine.stack[-1]
    if type(target) is not set:
        raise BadFile(f"it adds to a {type(target).__name__}, which is no set")
    for value in values:
        check_key(value)
    target.update(values)
    return at


@_on(b"\x91")  # FROZENSET
def _frozenset(machine: _Machine, at: int) -> int:
    values = machine.above_mark()
    for value in values:
        check_key(value)
    machine.stack.append(frozenset(values))
    return at


@_on(b"c")
def _global(machine: _Machine, at: int) -> int:
    middle = machine.data.index(b"\n", at)
    end = machine.data.index(b"\n", middle + 1)
    module, name = _text(machine.data[at:middle]), _text(machine.data[middle + 1 : end])
    machine.stack.append(resolve(module, name))
    return end + 1


@_on(b"\x93")  # STACK_GLOBAL
def _stack_global(machine: _Machine, at: int) -> int:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise BadFile("it names a class by something that is not text")
    machine.stack.append(resolve(module, name))
    return at


@_on(b"R")
def _reduce(machine: _Machine, at: int) -> int:
    args = machine.stack.pop()
    machine.stack[-1] = call(_a_global(machine.stack[-1]), _a_tuple(args))
    return at


@_on(b"\x81")  # NEWOBJ
def _new(machine: _Machine, at: int) -> int:
    args = machine.stack.pop()
    machine.stack[-1] = make(_a_global(machine.stack[-1]), _a_tuple(args), {})
    return at


@_on(b"\x92")  # NEWOBJ_EX
def _new_with_keywords(machine: _Machine, at: int) -> int:
    kwargs, args = machine.stack.pop(), machine.stack.pop()
    if type(kwargs) is not dict:
        raise BadFile("it passes keyword arguments that are no dict")
    machine.stack[-1] = make(_a_global(machine.stack[-1]), _a_tuple(args), kwargs)
    return at


@_on(b"b")
def _build(machine: _Machine, at: int) -> int:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if isinstance(target, Opaque) and target.state is None:
        # Frozen for everyone else: an object may be referred to before its state is known.
        object.__setattr__(target, "state", state)
    elif isinstance(target, Ordered) and type(state) is dict and target.attributes is None:
        target.attributes = state
    else:
        raise BadFile(f"it sets the state of a {type(target).__name__}")
    return at


@_on(b"Q")  # BINPERSID
def _persistent(machine: _Machine, at: int) -> int:
    machine.stack[-1] = storage(machine.stack[-1])
    return at


def _a_global(value: Any) -> Global:
    if type(value) is not Global:
        raise BadFile(f"it calls a {type(value).__name__}")
    return value


def _a_tuple(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise BadFile(f"it passes a {type(value).__name__} for arguments")
    return value


def _extend(target: Any, values: list[Any]) -> None:
    if type(target) is list:
        target.extend(values)
    elif isinstance(target, Opaque):
        if not target.appended:
            object.__setattr__(target, "appended", [])
        target.appended.extend(values)  # type: ignore[attr-defined]
    else:
        raise BadFile(f"it appends to a {type(target).__name__}")


def _update(target: Any, values: list[Any]) -> None:
    if len(values) % 2:
        raise BadFile("it sets a key without a value")
    pairs = zip(values[::2], values[1::2], strict=True)
    if isinstance(target, dict):
        for key, value in pairs:
            check_key(key)
            target[key] = value
    elif isinstance(target, Opaque):
        if not target.items:
            object.__setattr__(target, "items", [])
        target.items.extend(pairs)  # type: ignore[attr-defined]
    else:
        raise BadFile(f"it sets items of a {type(target).__name__}")
