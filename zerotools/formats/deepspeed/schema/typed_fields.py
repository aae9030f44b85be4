"""Read values of the expected types from the dicts in a file. Every error is a BadFile that names
the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import BadFile, Unsupported

Kind = TypeVar("Kind")
MOST_RANKS = 2**16


class Fields:
    """A dict in the file at `path`. For messages, `where` describes the position of the dict in the
    file.
    """

    def __init__(self, path: Path, tree: Any, where: str = "its top level") -> None:
        if tree == "":
            raise Unsupported(
                f"{path} is a placeholder of DeepSpeed's Nebula engine; the data is in Nebula's "
                "storage: load it with Nebula, and save it with the default engine"
            )
        if not isinstance(tree, dict):
            raise BadFile(
                f"{path}: {where} is a {type(tree).__name__}, but must be a dict; copy or download "
                "the file again"
            )
        self.path = path
        self.tree = tree

    def __contains__(self, key: str) -> bool:
        return self.tree.get(key) is not None

    def need(self, key: str, kind: type[Kind]) -> Kind:
        """Return the value of `key`, which must exist and have the given type.

        Raises:
            BadFile: the value is absent, or has another type.
        """
        value = self.maybe(key, kind)
        if value is None:
            raise BadFile(
                f"{self.path} has no {key!r}, which DeepSpeed always writes there; copy or "
                "download it again"
            )
        return value

    def maybe(self, key: str, kind: type[Kind]) -> Kind | None:
        """Return the value of `key`; None if the key is absent or its value is None.

        Raises:
            BadFile: the value has another type.
        """
        value = self.tree.get(key)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise BadFile(
                f"{self.path}: {key!r} is a {type(value).__name__}, but must be a {kind.__name__}"
            )
        return value

    def rank_count(self, key: str) -> int | None:
        """Return the number of ranks that is stored at `key`; None if it is absent.

        Raises:
            BadFile: the number is negative, or larger than the number of ranks of any run.
        """
        value = self.maybe(key, int)
        if value is not None and not 0 <= value <= MOST_RANKS:
            raise self.fault(f"{key!r} is {value!r:.40}, but a run has at most {MOST_RANKS} ranks")
        return value

    def inside(self, key: str) -> Fields:
        """Return the dict at `key` as another `Fields`."""
        return Fields(self.path, self.need(key, dict), repr(key))

    def fault(self, message: str) -> BadFile:
        return BadFile(f"{self.path}: {message}")


def shape_of(value: Any, path: Path, name: str) -> tuple[int, ...]:
    """Return a shape as a tuple. `value` is a torch.Size or, in MoE checkpoints, a plain tuple."""
    if isinstance(value, Sequence) and all(type(n) is int and n >= 0 for n in value):
        return tuple(value)
    raise BadFile(
        f"{path}: the shape of {name} is {value!r:.60}, but must be a list of sizes; copy or "
        "download the file again"
    )


def counts_of(value: Any, path: Path, what: str) -> tuple[int, ...]:
    """Return a tuple of sizes from a list, a tuple or a torch.Size; `what` names the value in
    messages.
    """
    if isinstance(value, list | tuple) and all(type(n) is int and 0 <= n < 2**62 for n in value):
        return tuple(value)
    raise BadFile(f"{path}: {what} has {value!r:.60} instead of sizes")


def shapes_of(value: Any, path: Path) -> dict[str, tuple[int, ...]]:
    """Check a mapping of tensor names to shapes, and return it."""
    if not isinstance(value, Mapping):
        raise BadFile(
            f"{path} has a {type(value).__name__} in the place of names and shapes; copy or "
            "download it again"
        )
    return {str(name): shape_of(shape, path, str(name)) for name, shape in value.items()}


def integer_of(value: Any) -> int | None:
    """Return the value as an int if it is an int or a pickled enum member; None for other
    values.
    """
    if isinstance(value, Opaque) and len(value.args) == 1:
        value = value.args[0]
    return value if type(value) is int else None
