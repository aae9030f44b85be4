"""The values of a pickle that are not plain Python values. None of them runs code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function in a pickle. The class or function is neither imported nor
    called.
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def kind_text(value: Any) -> str:
    """Return the kind of a value for messages: its Python type, or, for an opaque value, the class
    or function that the pickle names.
    """
    if isinstance(value, Opaque):
        return f"{value.module}.{value.name}"
    return type(value).__name__


class Size(tuple[int, ...]):
    """A torch.Size in a pickle."""

    __slots__ = ()


class Ordered(dict[Any, Any]):
    """A collections.OrderedDict in a pickle. `attributes` are attributes that were set on it, such
    as `_metadata` of a module's state_dict; None if it has no attributes.
    """

    __slots__ = ("attributes",)
    attributes: Mapping[str, Any] | None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.attributes = None


@dataclass(frozen=True, slots=True)
class Storage:
    """A torch storage. Its bytes are in the record `data/<key>` of the archive.

    `dtype` is None for an untyped storage, and then `numel` counts bytes.
    """

    key: str
    dtype: DType | None
    numel: int
    location: str = "cpu"

    @property
    def nbytes(self) -> int:
        return self.numel * (self.dtype.itemsize if self.dtype else 1)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a pickle, which is a view of a storage. `offset` and `strides` are in elements of
    `dtype`.
    """

    storage: Storage
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False
    hooks: Any = field(default_factory=Ordered, compare=False)
    metadata: Any = None


def walk_values(tree: Any) -> Iterator[Any]:
    """Yield all values in the tree of a pickle. A shared object is yielded once, so a pickle that
    refers to the same list a thousand times is not visited a thousand times.
    """
    seen: set[int] = set()
    stack = [tree]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, Mapping):
            stack += value.keys()
            stack += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            stack += value
        elif isinstance(value, Opaque):
            stack += (value.args, value.state, value.kwargs, value.items, value.appended)
