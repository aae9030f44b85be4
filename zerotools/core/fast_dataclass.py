"""The decorator `dataclass` of the standard library, made fast for Python 3.11 and 3.12.

Before Python 3.13, `dataclasses` compiles up to six functions for each class. That takes half a
millisecond, and a command makes 100 to 250 classes when it starts. This decorator lets the library
find the fields, compiles `__init__` when it is first looked up, and compiles nothing else. Classes
and objects behave like those of `dataclasses`, whose functions (`fields`, `replace`, `asdict`) take
them. Of the options, `eq`, `frozen`, `kw_only` and `slots` exist. A class that derives from such a
class needs this decorator, too.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any


def fast_dataclass(
    cls: type | None = None, /, *, eq: bool = True, frozen: bool = False, **options: bool
) -> Any:
    """Return `cls` as a dataclass, or the decorator if `cls` is None."""
    if cls is None:
        return lambda cls: fast_dataclass(cls, eq=eq, frozen=frozen, **options)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(cls)
    own, found = vars(made), fields(made)
    methods = {
        "__init__": _Init(made, frozen),
        "__repr__": _repr([field.name for field in found if field.repr]),
    }
    if frozen:
        names = [field.name for field in found]
        methods |= _frozen_methods(made, names, has_slots=options.get("slots", False))
    if eq:
        # Python sets `__hash__` to None in a class that defines `__eq__`.
        has_hash = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
        equal, hashed = _comparison([field.name for field in found if field.compare])
        methods["__eq__"] = equal
        if not has_hash:
            made.__hash__ = hashed if frozen else None
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


class _Init:
    """Takes the place of `__init__` in a class until it is first looked up. It is compiled then."""

    def __init__(self, cls: type, frozen: bool) -> None:
        self._cls = cls
        self._frozen = frozen

    def __get__(self, instance: object, owner: type) -> Any:
        method = _compiled_init(self._cls, self._frozen)
        type.__setattr__(self._cls, "__init__", method)
        return method.__get__(instance, owner)


class _Factory:
    """The default value of a parameter that has a `default_factory`, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


def _compiled_init(cls: Any, frozen: bool) -> Any:
    found = fields(cls)
    values: dict[str, Any] = {"_set": object.__setattr__, "_factory": _Factory()}
    body = []
    for field in found:
        name, default = field.name, f"_default_{field.name}"
        value = name if field.init else default
        if field.default_factory is not MISSING:
            values[default] = field.default_factory
            value = (
                f"{default}() if {name} is _factory else {name}" if field.init else f"{default}()"
            )
        elif field.default is not MISSING and (field.init or "__slots__" in vars(cls)):
            values[default] = field.default
        elif not field.init:  # the class has the default
            continue
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    accepted = [field for field in found if field.init]
    parameters = ["self", *(_parameter(field) for field in accepted if not field.kw_only)]
    if keywords := [_parameter(field) for field in accepted if field.kw_only]:
        parameters += ["*", *keywords]
    text = (
        f"def make({', '.join(values)}):\n"
        f" def __init__({', '.join(parameters)}):\n"
        f"  {'; '.join(body) or 'pass'}\n"
        " return __init__"
    )
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    method = namespace["make"](**values)
    method.__qualname__ = f"{cls.__qualname__}.__init__"
    method.__annotations__ = {field.name: field.type for field in accepted} | {"return": None}
    return method


def _parameter(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return f"{field.name}=_factory"
    return field.name if field.default is MISSING else f"{field.name}=_default_{field.name}"


def _repr(names: Sequence[str]) -> Any:
    @recursive_repr()
    def __repr__(self: object) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return __repr__


def _comparison(names: Sequence[str]) -> tuple[Any, Any]:
    # With one name, `attrgetter` returns the value and not a tuple.
    values: Any = attrgetter(*names, *names[:1]) if names else lambda _: ()

    def __eq__(self: object, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: object) -> int:
        return hash(values(self))

    # pytest shows the fields that differ if the file of `__eq__` is that of compiled methods.
    __eq__.__code__ = __eq__.__code__.replace(co_filename="<string>")
    return __eq__, __hash__


def _frozen_methods(cls: Any, names: Sequence[str], *, has_slots: bool) -> dict[str, Any]:
    def __setattr__(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]

    def __setstate__(self: Any, state: Sequence[Any]) -> None:
        for field, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, field.name, value)

    methods: dict[str, Any] = {"__setattr__": __setattr__, "__delattr__": __delattr__}
    if has_slots:
        methods |= {"__getstate__": __getstate__, "__setstate__": __setstate__}
    return methods


if TYPE_CHECKING or sys.version_info >= (3, 13):
    from dataclasses import dataclass as dataclass
else:
    dataclass = fast_dataclass
