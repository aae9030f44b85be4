"""Parts of names that wrappers add: DDP, FSDP, torch.compile, checkpointing, trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

WRAPPERS = frozenset({
    "module", "_orig_mod", "_forward_module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module",
    "_fpw_module", "policy",
})  # fmt: skip
_MOST_LEADING = 3


@dataclass(frozen=True)
class Unwrapping:
    """One scheme of tensor names. `removed` are the parts that it removes, as text."""

    new_name: Callable[[str], str]
    removed: tuple[str, ...] = ()


def namings(names: Iterable[str]) -> Iterator[Unwrapping]:
    """Yield the ways to name tensors, from the names as they are to those that lose most.

    Wrappers come off anywhere in a name, then up to three parts that all names begin with.
    """
    held = list(names)
    yield Unwrapping(lambda name: name)
    found = [word for word in sorted(WRAPPERS) if any(word in _parts(name) for name in held)]
    bare = list(dict.fromkeys(map(_bare, held)))
    if found and len(bare) == len(held) and all(bare):
        yield Unwrapping(_bare, tuple(f"{word}." for word in found))
    shared = _shared(bare)
    for count in range(1, len(shared) + 1):
        leading = ".".join(shared[:count]) + "."
        if len(bare) == len(held):
            yield Unwrapping(_without(leading), (*(f"{word}." for word in found), leading))


def _parts(name: str) -> list[str]:
    return name.split(".")


def _bare(name: str) -> str:
    return ".".join(part for part in _parts(name) if part not in WRAPPERS)


def _without(leading: str) -> Callable[[str], str]:
    return lambda name: _bare(name).removeprefix(leading)


def _shared(names: list[str]) -> list[str]:
    """Return the parts that all names begin with, without the last part of any."""
    columns = zip(*(_parts(name)[:-1][:_MOST_LEADING] for name in names), strict=False)
    found: list[str] = []
    for column in columns:
        if len(set(column)) > 1:
            break
        found.append(column[0])
    return found
