"""Writes a tree as a pickle that torch and pickle can load.

Protocol 2 is used, as in torch.save, because torch's restricted loader (`weights_only=True`)
understands it. Shared parts stay shared, and cycles stay cycles. The writer keeps a list of the
remaining work and does not recurse, so any depth is possible.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DType
from zerotools.core.errors import Unsupported
from zerotools.io.torchzip.pickle_values import Global, Ordered, Size, Storage, StoredTensor


def dumps(tree: Any) -> bytes:
    """Return the pickle of a tree, which consists of plain values and of values from
    `zerotools.io.torchzip.pickle_values`.

    A tensor is written as a reference to its storage, which is in the archive, outside the pickle.

    Raises:
        Unsupported: a value has another class, or a name contains a line break.
    """
    return _Writer().write(tree)


def dumps_renumbered(tree: Any) -> tuple[bytes, tuple[Storage, ...]]:
    """Return the pickle as `dumps` does, but with the storages renumbered from 0, as torch.save
    numbers them. Also return the storages in this order.

    Two storages with the same key are one storage.
    """
    writer = _Writer(numbers={})
    return writer.write(tree), tuple(writer.storages)


class _Emit(bytes):
    """Opcodes to write unchanged, as an entry in the list of the remaining work."""


class _Remember:
    """The instruction to memoize `value`, which was written last."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _CloseTuple:
    """The instruction to make a tuple of all values above the last mark."""

    def __init__(self, value: tuple[Any, ...]) -> None:
        self.value = value


class _Writer:
    def __init__(self, numbers: dict[str, str] | None = None) -> None:
        self.storages: list[Storage] = []
        self._numbers = numbers
        self._out = [b"\x80\x02"]
        self._memo: dict[Any, int] = {}
        self._alive: list[Any] = []
        self._waiting: list[Any] = []

    def write(self, tree: Any) -> bytes:
        self._waiting.append(tree)
        while self._waiting:
            value = self._waiting.pop()
            kind = type(value)
            if kind is _Emit:
                self._out.append(value)
            elif kind is _Remember:
                self._remember(value.value)
            elif kind is _CloseTuple:
                self._close_tuple(value.value)
            else:
                self._save(value)
        self._out.append(b".")
        return b"".join(self._out)

    def _save(self, value: Any) -> None:
        if (number := self._memo.get(_identity(value))) is not None:
            self._out.append(_get(number))
            return
        try:
            save = _SAVERS[type(value)]
        except KeyError:
            raise Unsupported(
                f"a {type(value).__module__}.{type(value).__name__} cannot be written to a pickle"
            ) from None
        save(self, value)

    def key_of(self, storage: Storage) -> str:
        """Return the key of a storage, which is the name of its record."""
        if self._numbers is None:
            return storage.key
        if storage.key not in self._numbers:
            self._numbers[storage.key] = str(len(self.storages))
            self.storages.append(storage)
        return self._numbers[storage.key]

    def plain(self, data: bytes) -> None:
        self._out.append(data)

    def named(self, key: Any, data: bytes) -> None:
        """Write an immutable value, and memoize it for the case that the tree contains it again."""
        self._out.append(data)
        self._remember(key)

    def then(self, *parts: Any) -> None:
        """Write `parts` next, before all other remaining values, in this order."""
        self._waiting.extend(reversed(parts))

    def _remember(self, value: Any) -> None:
        number = len(self._memo)
        self._memo[_identity(value)] = number
        self._alive.append(value)
        self._out.append(_memo_put(number))

    def _close_tuple(self, value: tuple[Any, ...]) -> None:
        number = self._memo.get(_identity(value))
        if number is None:
            self._out.append(b"t")
            self._remember(value)
        else:
            # The tuple contains itself through one of its parts, so it was written there already.
            self._out.append(b"1" + _get(number))


def _identity(value: Any) -> Any:
    """Return the key of a value in the memo: the value if it is a text or name, else its
    address."""
    if type(value) is str or type(value) is Global:
        return value
    return (type(value), id(value))


def _memo_put(number: int) -> bytes:
    return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)


def _get(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)


def _none(writer: _Writer, value: None) -> None:
    writer.plain(b"N")


def _bool(writer: _Writer, value: bool) -> None:
    writer.plain(b"\x88" if value else b"\x89")


def _int(writer: _Writer, value: int) -> None:
    if 0 <= value < 256:
        writer.plain(b"K" + bytes([value]))
    elif 0 <= value < 65536:
        writer.plain(b"M" + struct.pack("<H", value))
    elif -(2**31) <= value < 2**31:
        writer.plain(b"J" + struct.pack("<i", value))
    else:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        size = bytes([len(data)]) if len(data) < 256 else struct.pack("<i", len(data))
        writer.plain((b"\x8a" if len(data) < 256 else b"\x8b") + size + data)


def _float(writer: _Writer, value: float) -> None:
    writer.plain(b"G" + struct.pack(">d", value))


def _str(writer: _Writer, value: str) -> None:
    data = value.encode()
    writer.named(value, b"X" + struct.pack("<I", len(data)) + data)


def _bytes(writer: _Writer, value: bytes) -> None:
    if value:
        _reduce(writer, value, Global("_codecs", "encode"), (value.decode("latin-1"), "latin1"))
    else:
        _reduce(writer, value, Global("__builtin__", "bytes"), ())


def _bytearray(writer: _Writer, value: bytearray) -> None:
    _reduce(writer, value, Global("__builtin__", "bytearray"), (bytes(value),))


def _tuple(writer: _Writer, value: tuple[Any, ...]) -> None:
    if value:
        writer.then(_Emit(b"("), *value, _CloseTuple(value))
    else:
        writer.plain(b")")


def _list(writer: _Writer, value: list[Any]) -> None:
    writer.named(value, b"]")
    if value:
        writer.then(_Emit(b"("), *value, _Emit(b"e"))


def _dict(writer: _Writer, value: Mapping[Any, Any]) -> None:
    writer.named(value, b"}")
    writer.then(*_items(value.items()))


def _ordered(writer: _Writer, value: Ordered) -> None:
    tail = (value.attributes, _Emit(b"b")) if value.attributes is not None else ()
    body = _items(value.items())
    writer.then(
        Global("collections", "OrderedDict"), (), _Emit(b"R"), _Remember(value), *body, *tail
    )


def _set(writer: _Writer, value: set[Any]) -> None:
    _reduce(writer, value, Global("__builtin__", "set"), (list(value),))


def _frozenset(writer: _Writer, value: frozenset[Any]) -> None:
    _reduce(writer, value, Global("__builtin__", "frozenset"), (list(value),))


def _size(writer: _Writer, value: Size) -> None:
    _reduce(writer, value, Global("torch", "Size"), (tuple(value),))


def _dtype(writer: _Writer, value: DType) -> None:
    _global(writer, Global("torch", value.name))


def _global(writer: _Writer, value: Global) -> None:
    if (number := writer._memo.get(value)) is not None:
        writer.plain(_get(number))
        return
    if "\n" in value.module + value.name:
        raise Unsupported(f"the name {value.name!r} of a class has a line break in it")
    outer, dot, member = value.name.rpartition(".")
    if dot:
        _reduce(
            writer, value, Global("__builtin__", "getattr"), (Global(value.module, outer), member)
        )
        return
    writer.named(value, f"c{value.module}\n{value.name}\n".encode())


def _opaque(writer: _Writer, value: Opaque) -> None:
    cls, args = Global(value.module, value.name), tuple(value.args)
    if value.kwargs:
        # Protocols below 4 would need functools.partial here; NEWOBJ_EX has keyword arguments.
        head = [cls, args, dict(value.kwargs), _Emit(b"\x92")]
    else:
        head = [cls, args, _Emit(b"R" if value.called else b"\x81")]
    body: list[Any] = [_Remember(value)]
    if value.appended:
        body += [_Emit(b"("), *value.appended, _Emit(b"e")]
    body += _items(value.items)
    if value.state is not None:
        body += [value.state, _Emit(b"b")]
    writer.then(*head, *body)


def _storage(writer: _Writer, value: Storage) -> None:
    name = "UntypedStorage" if value.dtype is None else value.dtype.torch_storage
    if name is None:
        raise Unsupported(f"torch has no typed storage of {value.dtype}")
    module = "torch.storage" if value.dtype is None else "torch"
    reference = ("storage", Global(module, name), writer.key_of(value), value.location, value.numel)
    writer.then(reference, _Emit(b"Q"))


def _tensor(writer: _Writer, value: StoredTensor) -> None:
    typed = value.storage.dtype == value.dtype
    args = (
        value.storage, value.offset, value.shape, value.strides, value.requires_grad, value.hooks,
        *(() if typed else (value.dtype,)),
        *(() if value.metadata is None else (value.metadata,)),
    )  # fmt: skip
    name = "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3"
    _reduce(writer, value, Global("torch._utils", name), args)


def _reduce(writer: _Writer, value: Any, function: Global, args: tuple[Any, ...]) -> None:
    writer.then(function, args, _Emit(b"R"), _Remember(value))


def _items(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    flat = [part for pair in pairs for part in pair]
    return [_Emit(b"("), *flat, _Emit(b"u")] if flat else []


_SAVERS: dict[type, Callable[[_Writer, Any], None]] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    bytes: _bytes,
    bytearray: _bytearray,
    tuple: _tuple,
    list: _list,
    dict: _dict,
    set: _set,
    frozenset: _frozenset,
    Ordered: _ordered,
    Size: _size,
    DType: _dtype,
    Global: _global,
    Opaque: _opaque,
    Storage: _storage,
    StoredTensor: _tensor,
}
