"""Lost bytes: whoever reads a damaged checkpoint for what is left of it tolerates them.

A reader refuses a file that is damaged. Inside `tolerating`, it notes what is wrong with the file
instead, and goes on with what it can still prove:

    try:
        header = read_header(path)
    except BadFile as error:
        tolerate(path, error)  # raises it, unless lost bytes are tolerated
        return {}

What it cannot read it leaves out of its tensors' chunks, or says that it lies behind the end of its
file: both are holes, from which nothing is ever exported. A tensor of which not even the shape is
known is noted by its name.

Standard library only, as all that readers of a job's record need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.errors import ZerotoolsError


@dataclass
class Damage:
    """`faults` has what is wrong with a file, the first thing that was found; `names` the tensors
    of which nothing but the name is known, with the file that held them. `unnamed` are files that
    may have held tensors whose names nothing tells. `stand_in` is another checkpoint of the same
    run, for what is the same in both."""

    faults: dict[Path, str] = field(default_factory=dict)
    names: dict[str, Path] = field(default_factory=dict)
    unnamed: dict[Path, None] = field(default_factory=dict)
    stand_in: Path | None = None


_TOLERATED: ContextVar[Damage | None] = ContextVar("damage", default=None)


@contextmanager
def tolerating(stand_in: Path | None = None) -> Iterator[Damage]:
    """Lost bytes are noted inside the context, and do not end the reading. `stand_in` may be
    another checkpoint of the same run."""
    damage = Damage(stand_in=stand_in)
    token = _TOLERATED.set(damage)
    try:
        yield damage
    finally:
        _TOLERATED.reset(token)


def is_tolerated() -> bool:
    """Whether lost bytes are noted and not refused."""
    return _TOLERATED.get() is not None


def stand_in() -> Path | None:
    """Another checkpoint of the same run, whose lists of names and shapes may stand in for those
    that are lost; None where nobody named one."""
    damage = _TOLERATED.get()
    return None if damage is None else damage.stand_in


def tolerate(path: Path, error: ZerotoolsError) -> None:
    """Note that something of the file at `path` is lost.

    Raises:
        ZerotoolsError: `error`, where lost bytes are not tolerated.
    """
    damage = _TOLERATED.get()
    if damage is None:
        raise error
    damage.faults.setdefault(path.absolute(), str(error))


def lose_part(path: Path, why: str) -> None:
    """Note, where it is tolerated, that something of the file at `path` is lost; elsewhere what is
    said of its size tells of it."""
    damage = _TOLERATED.get()
    if damage is not None:
        damage.faults.setdefault(path.absolute(), why)


def lose_name(path: Path, name: str) -> None:
    """Note, where it is tolerated, that all of the tensor `name` is lost, and its shape too."""
    damage = _TOLERATED.get()
    if damage is not None:
        damage.names.setdefault(name, path.absolute())


def lose_unnamed(path: Path) -> None:
    """Note, where it is tolerated, that a lost file may have held tensors, or names that are tied
    to others, of which nothing tells."""
    damage = _TOLERATED.get()
    if damage is not None:
        damage.unnamed.setdefault(path.absolute())
