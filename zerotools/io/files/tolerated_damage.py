"""A context in which readers of a damaged checkpoint tolerate lost bytes.

A reader refuses a damaged file. Inside `tolerating_damage`, it records the fault of the file
instead, and continues with the parts that it can still prove:

    try:
        header = read_header(path)
    except BadFile as error:
        raise_or_record(path, error)  # raises it, unless lost bytes are tolerated
        return {}

Unreadable parts are omitted from the chunks of tensors, or get positions after the end of their
file. Both are holes, and a hole is never exported. A tensor with an unknown shape is recorded by
its name.

Standard library only, because the code that reads the record of a job imports this module.
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
    """The damage that readers found in a checkpoint.

    Attributes:
        faults: file -> the first fault of the file, as a sentence.
        names: name of each tensor that lost data -> the file that contained it.
        unnamed: files that may have contained tensors with unknown names.
        stand_in: another checkpoint of the same run. Values that are equal in both checkpoints,
            such as shapes, are read from it.
    """

    faults: dict[Path, str] = field(default_factory=dict)
    names: dict[str, Path] = field(default_factory=dict)
    unnamed: dict[Path, None] = field(default_factory=dict)
    stand_in: Path | None = None


_TOLERATED: ContextVar[Damage | None] = ContextVar("damage", default=None)


@contextmanager
def tolerating_damage(stand_in: Path | None = None) -> Iterator[Damage]:
    """Record lost bytes inside this context, instead of raising an error at the first one.

    `stand_in` may be another checkpoint of the same run.
    """
    damage = Damage(stand_in=stand_in)
    token = _TOLERATED.set(damage)
    try:
        yield damage
    finally:
        _TOLERATED.reset(token)


def is_tolerated() -> bool:
    """Return whether readers record lost bytes now, instead of raising an error."""
    return _TOLERATED.get() is not None


def stand_in() -> Path | None:
    """Return another checkpoint of the same run, or None if the user named none. If this checkpoint
    lost its lists of names and shapes, the lists of the other checkpoint are used.
    """
    damage = _TOLERATED.get()
    return None if damage is None else damage.stand_in


def raise_or_record(path: Path, error: ZerotoolsError) -> None:
    """Record `error` as a fault of the file at `path` if lost bytes are tolerated; raise it
    otherwise.

    Raises:
        ZerotoolsError: `error`, if lost bytes are not tolerated.
    """
    damage = _TOLERATED.get()
    if damage is None:
        raise error
    damage.faults.setdefault(path.absolute(), str(error))


def record_lost_part(path: Path, why: str) -> None:
    """Record that a part of the file at `path` is lost, with the sentence `why`, if lost bytes are
    tolerated. Otherwise do nothing, because the check of file sizes reports the loss.
    """
    damage = _TOLERATED.get()
    if damage is not None:
        damage.faults.setdefault(path.absolute(), why)


def record_lost_tensor(path: Path, name: str) -> None:
    """Record that all data and the shape of the tensor `name` are lost, if lost bytes are
    tolerated.
    """
    damage = _TOLERATED.get()
    if damage is not None:
        damage.names.setdefault(name, path.absolute())


def record_lost_unnamed(path: Path) -> None:
    """Record that the lost file at `path` may have contained tensors or tied names that no other
    file lists, if lost bytes are tolerated.
    """
    damage = _TOLERATED.get()
    if damage is not None:
        damage.unnamed.setdefault(path.absolute())
