"""Rules that remove parts of tensor names: words that wrappers such as DDP, FSDP, torch.compile and
TRL's model with a value head add, and words that all names begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

WRAPPERS = frozenset({
    "module", "_orig_mod", "_forward_module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module",
    "_fpw_module", "policy", "pretrained_model",
})  # fmt: skip
_MOST_LEADING = 3


@dataclass(frozen=True)
class Unwrapping:
    """A rule that renames tensors by removing parts of their names.

    `new_name` applies the rule to a name. `removed` are the removed parts, such as `module.`.
    """

    new_name: Callable[[str], str]
    removed: tuple[str, ...] = ()


def possible_namings(names: Iterable[str]) -> Iterator[Unwrapping]:
    """Yield the renaming rules to try. The first removes nothing.

    The second removes the parts that wrappers add, at any position in a name. The further rules
    also remove one to three parts that all names begin with.
    """
    held = list(names)
    yield Unwrapping(lambda name: name)
    found = [word for word in sorted(WRAPPERS) if any(word in _parts(name) for name in held)]
    bare = list(dict.fromkeys(map(_without_wrappers, held)))
    if found and len(bare) == len(held) and all(bare):
        yield Unwrapping(_without_wrappers, tuple(f"{word}." for word in found))
    shared = _shared(bare)
    for count in range(1, len(shared) + 1):
        leading = ".".join(shared[:count]) + "."
        if len(bare) == len(held):
            yield Unwrapping(_without(leading), (*(f"{word}." for word in found), leading))


def _parts(name: str) -> list[str]:
    return name.split(".")


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in _parts(name) if part not in WRAPPERS)


def _without(leading: str) -> Callable[[str], str]:
    return lambda name: _without_wrappers(name).removeprefix(leading)


def _shared(names: list[str]) -> list[str]:
    """Return the first parts that all names have in common. The last part of a name never
    counts."""
    columns = zip(*(_parts(name)[:-1][:_MOST_LEADING] for name in names), strict=False)
    found: list[str] = []
    for column in columns:
        if len(set(column)) > 1:
            break
        found.append(column[0])
    return found
