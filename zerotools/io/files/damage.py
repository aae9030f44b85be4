"""Lost bytes: a context that makes readers of a damaged checkpoint tolerate them.

A reader refuses a damaged file. Inside `tolerating`, it records the fault of the file instead, and
continues with the parts that it can still prove:

    try:
        header = read_header(path)
    except BadFile as error:
        tolerate(path, error)  # raises it, unless lost bytes are tolerated
        return {}

Unreadable parts are omitted from tensors' chunks, or placed after the end of their file: both are
holes, which are never exported. A tensor with an unknown shape is recorded by its name.

Standard library only, like everything that readers of a job's record need.
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
    """`faults` has the first fault of each file. `names` are the tensors with lost data and a known
    name, with the file that held them. `unnamed` are files that may have held tensors with unknown
    names. `stand_in` is another checkpoint of the same run, for values that are the same in both.
    """

    faults: dict[Path, str] = field(default_factory=dict)
    names: dict[str, Path] = field(default_factory=dict)
    unnamed: dict[Path, None] = field(default_factory=dict)
    stand_in: Path | None = None


_TOLERATED: ContextVar[Damage | None] = ContextVar("damage", default=None)


@contextmanager
def tolerating(stand_in: Path | None = None) -> Iterator[Damage]:
    """Record lost bytes inside the context, instead of ending the reading.

    `stand_in` may be another checkpoint of the same run.
    """
    damage = Damage(stand_in=stand_in)
    token = _TOLERATED.set(damage)
    try:
        yield damage
    finally:
        _TOLERATED.reset(token)


def is_tolerated() -> bool:
    """Return whether lost bytes are recorded instead of refused."""
    return _TOLERATED.get() is not None


def stand_in() -> Path | None:
    """Return another checkpoint of the same run that may replace lost lists of names and shapes;
    None if the user named none."""
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
    """Record, if it is tolerated, that a part of the file at `path` is lost; otherwise its size
    shows it."""
    damage = _TOLERATED.get()
    if damage is not None:
        damage.faults.setdefault(path.absolute(), why)


def lose_name(path: Path, name: str) -> None:
    """Record, if it is tolerated, that all of the tensor `name` is lost, with its shape."""
    damage = _TOLERATED.get()
    if damage is not None:
        damage.names.setdefault(name, path.absolute())


def lose_unnamed(path: Path) -> None:
    """Record, if it is tolerated, that a lost file may have held tensors or tied names that are not
    listed anywhere."""
    damage = _TOLERATED.get()
    if damage is not None:
        damage.unnamed.setdefault(path.absolute())
