"""The identity of an output: digests of its inputs. An interrupted run is resumed only if no input
has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Stamp
from zerotools.core.flat_ranges import Ranges
from zerotools.core.target import CarriedBytes, Checksum, LiteralBytes, Target, ZeroBytes
from zerotools.version import version

FilePart = LiteralBytes | CarriedBytes | Checksum | ZeroBytes

# Journals store digests of these words, whatever the classes and fields are called today.
_WORDS = {
    LiteralBytes: ("Literal", {"offset": "offset", "data": "data"}),
    CarriedBytes: (
        "Carried",
        {
            "offset": "offset",
            "source": "source",
            "source_offset": "source_offset",
            "length": "length",
        },
    ),
    Checksum: ("Checksum", {"start": "start", "length": "length", "target_offset": "at"}),
    ZeroBytes: ("Zeros", {"offset": "offset", "length": "length"}),
}


def identity_of(
    source: Checkpoint, target: Target, request: str, stamps: Mapping[Path, Stamp]
) -> dict[str, str]:
    """Return the digests of the inputs of an output, keyed by the kind of input. `stamps` are all
    files that were read to plan the output."""
    return {
        "source files": _digest(_source_facts(stamps)),
        "options": _digest([request]),
        "layout": _digest(_layout_facts(source, target)),
        "version of zerotools": version(),
    }


def _digest(facts: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(repr(fact).encode() + b"\n")
    return digest.hexdigest()


def _source_facts(stamps: Mapping[Path, Stamp]) -> Iterator[object]:
    """Yield the path, size, modification time and inode of every source file. The device number is
    left out, because a restart of the machine may change it."""
    for path, stamp in sorted(stamps.items()):
        yield os.fsencode(str(path)), stamp.size, stamp.mtime_ns, stamp.inode


def _layout_facts(source: Checkpoint, target: Target) -> Iterator[object]:
    for file, plan in target.files.items():
        known, carried = _with_stable_repr(plan.literals), _with_stable_repr(plan.carried)
        yield (
            file,
            plan.size,
            known,
            carried,
            _with_stable_repr(plan.checksums),
            _with_stable_repr(plan.zeros),
        )
    for key, tensor in target.checkpoint.tensors.items():
        yield key, tensor.dtype.name, tensor.shape, source.tensors[key].dtype.name
        if isinstance(tensor.chunks, Ranges):
            yield [tuple(each) for each in tensor.chunks.each()]
        else:
            yield from tensor.chunks


def _with_stable_repr(parts: Sequence[FilePart]) -> Sequence[_StableRepr]:
    named = (_StableRepr(part) for part in parts)
    return tuple(named) if isinstance(parts, tuple) else list(named)


class _StableRepr:
    """The `repr` of a range of a file, in a form that must never change, because journals store
    digests of it."""

    def __init__(self, part: FilePart) -> None:
        self._part = part

    def __repr__(self) -> str:
        word, fields = _WORDS[type(self._part)]
        values = (f"{name}={getattr(self._part, field)!r}" for field, name in fields.items())
        return f"{word}({', '.join(values)})"
