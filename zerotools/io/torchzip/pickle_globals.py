"""The names of classes and functions in a pickle that zerotools understands. Objects with other
names become `Opaque`.

The functions that build values for these names are part of zerotools, and use only their arguments.
They understand the output of torch.save (torch/_tensor.py, torch/serialization.py), and the form in
which pickle writes bytes and sets below protocol 3.

`check_key` limits the values that are hashed. Hashing a tuple visits everything below it. A tuple
that is nested a million deep overflows the C stack, and a tuple that contains itself twice at each
of 60 levels takes forever. Integers near the modulus of Python's hash can be chosen to collide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from zerotools.core import dtypes
from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.torchzip.pickle_values import Global, Ordered, Size, Storage, StoredTensor

_TORCH_DTYPES = {dtype.name: dtype for dtype in dtypes.DTYPES}
_UNTYPED = ("UntypedStorage", "_UntypedStorage")
# Bits in a tensor's metadata. If one is set, the values differ from the stored bytes.
LAZY_BITS = ("neg", "conj")
# Masks and positions are expanded to some megabytes; more could be an attempt to fill a disk.
LARGEST_REPEATED = 2**24


def resolve_global(module: str, name: str) -> Any:
    """Return the value for a global name in a pickle: a dtype, or a `Global` with the
    name.
    """
    if module == "torch" and (dtype := _TORCH_DTYPES.get(name)) is not None:
        return dtype
    return Global(module, name)


def value_of_call(function: Global, args: tuple[Any, ...]) -> Any:
    """Return the value that stands for `function(*args)` in a pickle. An unknown function gives an
    `Opaque`.
    """
    builder = BUILDERS.get((function.module, function.name))
    value = builder(args) if builder is not None else None
    if value is not None:
        return value
    return Opaque(function.module, function.name, args, called=True)


def value_of_new(cls: Global, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the `Opaque` that stands for `cls.__new__(cls, *args, **kwargs)` in a pickle."""
    return Opaque(cls.module, cls.name, args, kwargs=kwargs)


def persistent_storage(identifier: Any) -> Storage:
    """Return the storage for a persistent id of torch: ("storage", class, key, location, numel).

    Files from before torch 1.6 have a sixth entry: None, or the storage that this storage is a view
    of.
    """
    if type(identifier) is not tuple or len(identifier) not in (5, 6) or identifier[0] != "storage":
        raise BadFile("it refers to an external object that is not a torch storage")
    if identifier[5:] not in ((), (None,)):
        raise Unsupported(
            "it has a storage that is a view of another one (torch before 0.4), which "
            "zerotools does not read"
        )
    _, cls, key, location, numel = identifier[:5]
    if type(cls) is not Global or type(key) is not str or type(location) is not str:
        raise BadFile("it refers to a storage without class, key or location")
    dtype = None if cls.name in _UNTYPED else dtypes.from_torch_storage(cls.name)
    return Storage(key, dtype, _count(numel), location)


def _tensor_v2(args: tuple[Any, ...]) -> StoredTensor | None:
    """Return the tensor for a call of _rebuild_tensor_v2(storage, offset, size, stride,
    requires_grad, hooks[, metadata]).
    """
    if not 6 <= len(args) <= 7:
        raise BadFile(f"it rebuilds a tensor from {len(args)} arguments, but torch saves 6 or 7")
    if type(args[0]) is not Storage:
        raise BadFile("it rebuilds a tensor from something that is not a storage")
    if args[0].dtype is None:
        raise Unsupported("it has a tensor without a dtype, which zerotools does not read")
    return _tensor(args[0].dtype, *args)


def _tensor_v3(args: tuple[Any, ...]) -> StoredTensor | None:
    """Return the tensor for a call of _rebuild_tensor_v3(storage, offset, size, stride,
    requires_grad, hooks, dtype[, metadata]). torch writes this call for dtypes without a storage
    class.
    """
    if not 7 <= len(args) <= 8:
        raise BadFile(f"it rebuilds a tensor from {len(args)} arguments, but torch saves 7 or 8")
    if type(args[6]) is not DType:
        raise Unsupported(f"element type {args[6]} is not one that zerotools supports")
    return _tensor(args[6], *args[:6], *args[7:])


def _tensor(
    dtype: DType,
    stored: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any,
    metadata: Any = None,
) -> StoredTensor | None:
    if type(stored) is not Storage:
        raise BadFile("it rebuilds a tensor from something that is not a storage")
    sizes, steps = _counts(shape), _counts(strides)
    if len(sizes) != len(steps):
        raise BadFile(f"a tensor has {len(sizes)} dimensions and {len(steps)} strides")
    tensor = StoredTensor(
        stored, dtype, _count(offset), sizes, steps, bool(requires_grad), hooks, metadata
    )
    last = tensor.offset + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    if 0 not in sizes and (last + 1) * dtype.itemsize > stored.nbytes:
        raise BadFile(
            f"a tensor of shape {sizes} needs {(last + 1) * dtype.itemsize} bytes, but its "
            f"storage {stored.key!r} has {stored.nbytes}"
        )
    nbytes = prod(sizes) * dtype.itemsize
    if nbytes > max(stored.nbytes, LARGEST_REPEATED):
        raise BadFile(
            f"a tensor of shape {sizes} with strides {steps} repeats elements: it would have "
            f"{nbytes} bytes, but its storage {stored.key!r} has {stored.nbytes}; save it "
            "contiguous"
        )
    if type(metadata) is dict and any(metadata.get(bit) for bit in LAZY_BITS):
        return None
    return tensor


def _ordered(args: tuple[Any, ...]) -> Ordered | None:
    if not args:
        return Ordered()
    pairs = args[0] if len(args) == 1 else None
    if type(pairs) is not list or not all(type(p) in (list, tuple) and len(p) == 2 for p in pairs):
        raise BadFile("an OrderedDict does not consist of pairs")
    made = Ordered()
    for key, value in pairs:
        check_key(key)
        made[key] = value
    return made


def _size(args: tuple[Any, ...]) -> Size | None:
    if len(args) != 1 or type(args[0]) not in (tuple, list):
        raise BadFile("a torch.Size does not come from a tuple")
    return Size(_counts(tuple(args[0])))


def _encoded(args: tuple[Any, ...]) -> bytes | None:
    """Return the bytes for a call of _codecs.encode(text, "latin1"), which is how protocol 2 writes
    bytes.
    """
    if len(args) == 2 and type(args[0]) is str and args[1] in ("latin1", "latin-1"):
        return args[0].encode("latin-1")
    return None


def _bytes(args: tuple[Any, ...]) -> bytes | None:
    return None if args else b""


def _bytearray(args: tuple[Any, ...]) -> bytearray | None:
    if not args or (len(args) == 1 and type(args[0]) is bytes):
        return bytearray(*args)
    return None


def _set(args: tuple[Any, ...]) -> set[Any] | None:
    return set(_members(args))


def _frozenset(args: tuple[Any, ...]) -> frozenset[Any] | None:
    return frozenset(_members(args))


def _members(args: tuple[Any, ...]) -> list[Any]:
    if len(args) != 1 or type(args[0]) is not list:
        raise BadFile("a set does not come from a list")
    for value in args[0]:
        check_key(value)
    return args[0]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise BadFile(f"it has {value!r:.40} instead of a count")
    return value


def _counts(values: Any) -> tuple[int, ...]:
    if type(values) not in (tuple, Size) or len(values) > 64:
        raise BadFile("a shape is not a tuple of at most 64 counts")
    for value in values:
        if type(value) is not int or not 0 <= value < 2**63:
            _count(value)  # raises an error with the reason
    return tuple(values)


def _member(args: tuple[Any, ...]) -> Global | None:
    """Return the `Global` for a call of getattr(class, name). Protocols below 4 write a class
    inside a class as such a call.
    """
    if len(args) == 2 and type(args[0]) is Global and type(args[1]) is str:
        return Global(args[0].module, f"{args[0].name}.{args[1]}")
    return None


_Builder = Callable[[tuple[Any, ...]], Any]
BUILDERS: dict[tuple[str, str], _Builder] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("collections", "OrderedDict"): _ordered,
    ("torch", "Size"): _size,
    ("_codecs", "encode"): _encoded,
    ("__builtin__", "getattr"): _member,
    ("builtins", "getattr"): _member,
    ("__builtin__", "bytes"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("__builtin__", "bytearray"): _bytearray,
    ("builtins", "bytearray"): _bytearray,
    ("__builtin__", "set"): _set,
    ("builtins", "set"): _set,
    ("__builtin__", "frozenset"): _frozenset,
    ("builtins", "frozenset"): _frozenset,
}


_PLAIN = (str, float, bool, bytes, type(None))
_MAX_PARTS = 256
_LARGEST_INTEGER = 2**60


def check_key(key: Any) -> None:
    """Raise an error for a value that cannot be hashed safely as the key of a dict or the member of
    a set.
    """
    kind = type(key)
    if kind is str:
        return
    if kind is int:
        if not -_LARGEST_INTEGER <= key <= _LARGEST_INTEGER:
            raise BadFile("a dict key is an integer of more than 60 bits")
    elif isinstance(key, tuple | frozenset):
        _check_parts(key)


def _check_parts(key: tuple[Any, ...] | frozenset[Any]) -> None:
    waiting, seen = [key], 0
    while waiting:
        part = waiting.pop()
        seen += len(part)
        if seen > _MAX_PARTS:
            raise BadFile(f"a dict key has more than {_MAX_PARTS} parts")
        for value in part:
            if isinstance(value, tuple | frozenset):
                waiting.append(value)
            else:
                check_key(value)
