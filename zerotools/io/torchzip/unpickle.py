"""Reads a pickle without running it.

The pickle machine builds plain values and `Opaque`s. It cannot import a module, or call anything
that the pickle names. The opcode REDUCE looks the name up in `pickle_globals.BUILDERS`, a few
functions in zerotools. Every other call, and every new object, becomes an `Opaque`.

A hostile pickle cannot exhaust memory either. `pickle_machine` limits sizes, nothing recurses into
built values, and a key of a dict or set is hashed only after a check that it is small. The memory
of the built values is estimated by the kind of each object. The limit,
`zerotools.io.files.metadata_memory_limit`, is computed from the sizes of the pickle and of the data
next to it. For each byte of the pickle, the estimate is 30 bytes for a state dict of 20,000
tensors, 23 bytes for the state of its optimizer, and 72 bytes for a pickle that consists of `}`.
"""

from __future__ import annotations

import struct
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import BadFile, Unsupported, ZerotoolsError
from zerotools.io.files.metadata_memory_limit import SMALL, DataSize, metadata_limit, no_data
from zerotools.io.torchzip.pickle_globals import (
    check_key,
    persistent_storage,
    resolve_global,
    value_of_call,
    value_of_new,
)
from zerotools.io.torchzip.pickle_machine import (
    ENTRY,
    HANDLERS,
    NUMBER,
    OBJECT,
    PickleMachine,
    TruncatedPickle,
    on,
    text,
)
from zerotools.io.torchzip.pickle_values import Global, Ordered

LARGEST_PICKLE = 2**30
_STEP = 2**20
"""The growth of the built objects, in bytes, after which they are compared with the limit again."""
_MEMOIZE, _BINGET, _LONG_BINGET, _BININT1 = b"\x94hjK"
_index_at = struct.Struct("<I").unpack_from


def loads(data: bytes, *, source: object, data_size: DataSize = no_data) -> Any:
    """Return the tree of a pickle. `source` is named in messages, and `data_size` returns the
    number of bytes of data that the pickle describes.

    Raises:
        BadFile: the pickle is damaged, or does something that no saved checkpoint does.
        Unsupported: zerotools does not know an opcode, a storage or a dtype.
    """
    tree, _ = loads_from(data, 0, source=source, data_size=data_size)
    return tree


def loads_from(
    data: bytes, at: int, *, source: object, data_size: DataSize = no_data
) -> tuple[Any, int]:
    """Read the pickle that begins at byte `at`, as `loads` does. Return its tree, and the position
    of the byte after the pickle.
    """
    if len(data) > LARGEST_PICKLE:
        raise Unsupported(
            f"{source}: its pickle has {len(data)} bytes, but zerotools reads at most "
            f"{LARGEST_PICKLE}"
        )
    machine, begin, most = PickleMachine(data), at, SMALL
    memo, stack, known = machine.memo, machine.stack, machine.memo.__getitem__
    try:
        while not machine.done:
            opcode = data[at]
            at += 1
            # These four are half of the opcodes in `.metadata`, so they are handled without a call.
            if opcode == _MEMOIZE:
                memo[len(memo)] = stack[-1]
                machine.cost += ENTRY
            elif opcode == _LONG_BINGET:
                stack.append(known(_index_at(data, at)[0]))
                at += 4
                continue
            elif opcode == _BINGET:
                stack.append(known(data[at]))
                at += 1
                continue
            elif opcode == _BININT1:
                stack.append(data[at])
                machine.cost += NUMBER
                at += 1
            else:
                at = HANDLERS[opcode](machine, at)
                stack = machine.stack
            if machine.cost > most:
                limit = metadata_limit(given := data_size(), at - begin)
                most = min(limit, machine.cost + _STEP)
                if machine.cost > limit:
                    raise BadFile(
                        f"its first {at - begin} bytes build objects of {machine.cost} bytes, more "
                        f"than in any real checkpoint with {given} bytes of data: the file was "
                        "made to fill the memory; do not use it"
                    )
        return machine.stack.pop(), at
    except ZerotoolsError as error:
        raise type(error)(f"{source}: its pickle, near byte {at}: {error}") from None
    except (IndexError, struct.error):
        raise TruncatedPickle(
            f"{source}: its pickle is truncated or damaged near byte {at}; copy or download the "
            "file again"
        ) from None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadFile(
            f"{source}: its pickle is damaged near byte {at} ({error}); copy or download the file "
            "again"
        ) from None


@on(b"a")
def _append(machine: PickleMachine, at: int) -> int:
    value = machine.stack.pop()
    _extend(machine.stack[-1], [value])
    return at


@on(b"e")
def _appends(machine: PickleMachine, at: int) -> int:
    values = machine.above_mark()
    _extend(machine.stack[-1], values)
    return at


@on(b"s")
def _set_item(machine: PickleMachine, at: int) -> int:
    value = machine.stack.pop()
    key = machine.stack.pop()
    _update(machine.stack[-1], [key, value])
    machine.cost += ENTRY
    return at


@on(b"u")
def _set_items(machine: PickleMachine, at: int) -> int:
    values = machine.above_mark()
    _update(machine.stack[-1], values)
    machine.cost += ENTRY * len(values) // 2
    return at


@on(b"\x90")  # ADDITEMS
def _add_items(machine: PickleMachine, at: int) -> int:
    values = machine.above_mark()
    target = machine.stack[-1]
    if type(target) is not set:
        raise BadFile(f"it adds to a {type(target).__name__}, which is not a set")
    for value in values:
        check_key(value)
    target.update(values)
    machine.cost += ENTRY * len(values)
    return at


@on(b"\x91")  # FROZENSET
def _frozenset(machine: PickleMachine, at: int) -> int:
    values = machine.above_mark()
    for value in values:
        check_key(value)
    machine.stack.append(frozenset(values))
    machine.cost += OBJECT + ENTRY * len(values)
    return at


@on(b"c")
def _global(machine: PickleMachine, at: int) -> int:
    middle = machine.data.index(b"\n", at)
    end = machine.data.index(b"\n", middle + 1)
    module, name = text(machine.data[at:middle]), text(machine.data[middle + 1 : end])
    machine.stack.append(resolve_global(module, name))
    machine.cost += OBJECT
    return end + 1


@on(b"\x93")  # STACK_GLOBAL
def _stack_global(machine: PickleMachine, at: int) -> int:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise BadFile("it names a class by something that is not text")
    machine.stack.append(resolve_global(module, name))
    machine.cost += OBJECT
    return at


@on(b"R")
def _reduce(machine: PickleMachine, at: int) -> int:
    args = machine.stack.pop()
    machine.stack[-1] = value_of_call(_a_global(machine.stack[-1]), _a_tuple(args))
    machine.cost += OBJECT
    return at


@on(b"\x81")  # NEWOBJ
def _new(machine: PickleMachine, at: int) -> int:
    args = machine.stack.pop()
    machine.stack[-1] = value_of_new(_a_global(machine.stack[-1]), _a_tuple(args), {})
    machine.cost += OBJECT
    return at


@on(b"\x92")  # NEWOBJ_EX
def _new_with_keywords(machine: PickleMachine, at: int) -> int:
    kwargs, args = machine.stack.pop(), machine.stack.pop()
    if type(kwargs) is not dict:
        raise BadFile("it passes keyword arguments that are not a dict")
    machine.stack[-1] = value_of_new(_a_global(machine.stack[-1]), _a_tuple(args), kwargs)
    machine.cost += OBJECT
    return at


@on(b"b")
def _build(machine: PickleMachine, at: int) -> int:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if isinstance(target, Opaque) and target.state is None:
        target.state = state
    elif isinstance(target, Ordered) and type(state) is dict and target.attributes is None:
        target.attributes = state
    else:
        raise BadFile(
            f"it sets the state of a {type(target).__name__} twice, or to a value that this type "
            "cannot have"
        )
    return at


@on(b"Q")  # BINPERSID
def _persistent(machine: PickleMachine, at: int) -> int:
    machine.stack[-1] = persistent_storage(machine.stack[-1])
    machine.cost += OBJECT
    return at


def _a_global(value: Any) -> Global:
    if type(value) is not Global:
        raise BadFile(f"it calls a {type(value).__name__}")
    return value


def _a_tuple(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise BadFile(f"it passes a {type(value).__name__} instead of a tuple as arguments")
    return value


def _extend(target: Any, values: list[Any]) -> None:
    if type(target) is list:
        target.extend(values)
    elif isinstance(target, Opaque):
        if not target.appended:
            target.appended = []
        target.appended.extend(values)  # type: ignore[attr-defined]
    else:
        raise BadFile(f"it appends to a {type(target).__name__}, which is not a list")


def _update(target: Any, values: list[Any]) -> None:
    if len(values) % 2:
        raise BadFile("it has a dict key without a value")
    keys = values[::2]
    pairs = zip(keys, values[1::2], strict=True)
    if isinstance(target, dict):
        for key in keys:
            if type(key) is not str:
                check_key(key)
        target.update(pairs)
    elif isinstance(target, Opaque):
        if not target.items:
            target.items = []
        target.items.extend(pairs)  # type: ignore[attr-defined]
    else:
        raise BadFile(f"it sets items of a {type(target).__name__}, which is not a dict")
