"""The pickle machine: its stack, its memo, and most opcodes that make only plain values.

Sizes are checked against the number of bytes that have not been read yet, and the memo is a dict.
So neither a length nor a memo index can make the machine allocate much memory.
`zerotools.io.torchzip.unpickle` adds the opcodes that build objects.

Opcodes: CPython's Lib/pickletools.py. Opcodes of protocols 0 and 1 that neither torch.save nor
pickle.dump (protocols 2 to 5) writes are refused, as are extension codes and out-of-band buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from zerotools.core.errors import BadFile, Unsupported

# The bytes that one value of each kind needs in CPython 3.11 to 3.13, with its slot on the stack.
LIST, _DICT, _SET, _TUPLE, NUMBER, _TEXT = 64, 72, 224, 48, 40, 60
ENTRY, OBJECT = 70, 200
# In bytes. Integers up to this size can be converted to float, and to text: Python refuses to
# convert integers of more than 4300 digits.
_LARGEST_INTEGER = 127


class TruncatedPickle(BadFile):
    """The error for data that ends before the pickle ends."""


class PickleMachine:
    """The state of the pickle machine. `stack` is the part of the stack above the last mark. `cost`
    is the estimated number of bytes of all values that were made so far.
    """

    __slots__ = ("cost", "data", "done", "memo", "stack", "under")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.done = False
        self.cost = 0
        self.memo: dict[int, Any] = {}
        self.stack: list[Any] = []
        self.under: list[list[Any]] = []

    def above_mark(self) -> list[Any]:
        values = self.stack
        self.stack = self.under.pop()
        return values

    def read_bytes(self, at: int, size: int) -> bytes:
        if size < 0 or size > len(self.data) - at:
            raise TruncatedPickle(f"{size} bytes are announced, but {len(self.data) - at} follow")
        return self.data[at : at + size]


OpcodeHandler = Callable[[PickleMachine, int], int]


# Text opcodes of protocol 0, INST, OBJ, LIST, DICT, extension codes and out-of-band buffers.
_REFUSED = frozenset(b"FILSVPdgilop\x82\x83\x84\x97\x98")


def _refuse(machine: PickleMachine, at: int) -> int:
    opcode = machine.data[at - 1]
    if opcode in _REFUSED:
        raise Unsupported(f"opcode 0x{opcode:02x} is not one that checkpoints use")
    raise BadFile(f"byte 0x{opcode:02x} is not an opcode: the pickle is damaged")


HANDLERS: list[OpcodeHandler] = [_refuse] * 256


def on(*opcodes: bytes) -> Callable[[OpcodeHandler], OpcodeHandler]:
    def register(handler: OpcodeHandler) -> OpcodeHandler:
        for opcode in opcodes:
            HANDLERS[opcode[0]] = handler
        return handler

    return register


@on(b"\x80")  # PROTO
def _proto(machine: PickleMachine, at: int) -> int:
    if machine.data[at] > 5:
        raise Unsupported(f"pickle protocol {machine.data[at]} is newer than 5")
    return at + 1


@on(b"\x95")  # FRAME
def _frame(machine: PickleMachine, at: int) -> int:
    return at + 8


@on(b".")
def _stop(machine: PickleMachine, at: int) -> int:
    if machine.under or len(machine.stack) != 1:
        raise BadFile("it stops with unused values on its stack")
    machine.done = True
    return at


@on(b"(")
def _mark(machine: PickleMachine, at: int) -> int:
    machine.under.append(machine.stack)
    machine.stack = []
    machine.cost += LIST
    return at


@on(b"0")  # POP
def _pop(machine: PickleMachine, at: int) -> int:
    machine.stack.pop()
    return at


@on(b"1")  # POP_MARK
def _pop_mark(machine: PickleMachine, at: int) -> int:
    machine.above_mark()
    return at


@on(b"2")  # DUP
def _dup(machine: PickleMachine, at: int) -> int:
    machine.stack.append(machine.stack[-1])
    return at


def _constant(opcode: bytes, value: Any) -> None:
    def push(machine: PickleMachine, at: int) -> int:
        machine.stack.append(value)
        return at

    HANDLERS[opcode[0]] = push


def _fresh(opcode: bytes, make_one: Callable[[], Any], cost: int) -> None:
    def push(machine: PickleMachine, at: int) -> int:
        machine.stack.append(make_one())
        machine.cost += cost
        return at

    HANDLERS[opcode[0]] = push


def _number(opcode: bytes, layout: str) -> None:
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def push(machine: PickleMachine, at: int) -> int:
        machine.stack.append(unpack(machine.data, at)[0])
        machine.cost += NUMBER
        return at + size

    HANDLERS[opcode[0]] = push


def _sized(opcode: bytes, layout: str, decode: Callable[[bytes], Any]) -> None:
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def push(machine: PickleMachine, at: int) -> int:
        (length,) = unpack(machine.data, at)
        at += size
        machine.stack.append(decode(machine.read_bytes(at, length)))
        machine.cost += _TEXT + int(length)
        return at + int(length)

    HANDLERS[opcode[0]] = push


def text(data: bytes) -> str:
    return data.decode("utf-8")


def _integer(data: bytes) -> int:
    if len(data) > _LARGEST_INTEGER:
        raise Unsupported(f"it has an integer of {len(data)} bytes, which no checkpoint has")
    return int.from_bytes(data, "little", signed=True)


_constant(b"N", None)
_constant(b"\x88", True)
_constant(b"\x89", False)
_constant(b")", ())
_fresh(b"]", list, LIST)
_fresh(b"}", dict, _DICT)
_fresh(b"\x8f", set, _SET)
_number(b"M", "<H")
_number(b"J", "<i")
_number(b"G", ">d")
_sized(b"\x8a", "<B", _integer)  # LONG1
_sized(b"\x8b", "<i", _integer)  # LONG4
_sized(b"\x8c", "<B", text)  # SHORT_BINUNICODE
_sized(b"X", "<I", text)  # BINUNICODE
_sized(b"\x8d", "<Q", text)  # BINUNICODE8
_sized(b"U", "<B", text)  # SHORT_BINSTRING, of Python 2
_sized(b"T", "<i", text)  # BINSTRING
_sized(b"C", "<B", bytes)  # SHORT_BINBYTES
_sized(b"B", "<I", bytes)  # BINBYTES
_sized(b"\x8e", "<Q", bytes)  # BINBYTES8
_sized(b"\x96", "<Q", bytearray)  # BYTEARRAY8


@on(b"t")
def _tuple(machine: PickleMachine, at: int) -> int:
    values = machine.above_mark()
    machine.stack.append(tuple(values))
    machine.cost += _TUPLE + 8 * len(values)
    return at


@on(b"\x85", b"\x86", b"\x87")  # TUPLE1, TUPLE2, TUPLE3
def _short_tuple(machine: PickleMachine, at: int) -> int:
    count = machine.data[at - 1] - 0x84
    if len(machine.stack) < count:
        raise IndexError
    machine.stack[-count:] = [tuple(machine.stack[-count:])]
    machine.cost += _TUPLE + 8 * count
    return at


@on(b"q")  # BINPUT
def _put(machine: PickleMachine, at: int) -> int:
    machine.memo[machine.data[at]] = machine.stack[-1]
    machine.cost += ENTRY
    return at + 1


@on(b"r")  # LONG_BINPUT
def _long_put(machine: PickleMachine, at: int) -> int:
    machine.memo[int.from_bytes(machine.read_bytes(at, 4), "little")] = machine.stack[-1]
    machine.cost += ENTRY
    return at + 4
