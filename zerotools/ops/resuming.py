"""What an output is made of: a run that was interrupted goes on only if none of it changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from zerotools import __version__
from zerotools.core.checkpoint import Checkpoint, Target
from zerotools.core.ranges import Ranges


def identity_of(source: Checkpoint, target: Target, request: str) -> dict[str, str]:
    """Digests by what they are digests of; they are for comparing only."""
    return {
        "source files": _digest(_source_facts(source, target)),
        "options": _digest([request]),
        "layout": _digest(_layout_facts(source, target)),
        "version of zerotools": __version__,
    }


def _digest(facts: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(repr(fact).encode() + b"\n")
    return digest.hexdigest()


def _source_facts(source: Checkpoint, target: Target) -> Iterator[object]:
    """Path, size and time of change of every file that may be read."""
    carried = {part.source for plan in target.files.values() for part in plan.carried}
    paths = (
        {source.root / file for file in source.files} | set(source.companions.values()) | carried
    )
    for path in sorted(paths):
        yield str(path.absolute()), _stamp(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _layout_facts(source: Checkpoint, target: Target) -> Iterator[object]:
    for file, plan in target.files.items():
        yield file, plan.size, plan.literals, plan.carried, plan.checksums, plan.zeros
    for key, tensor in target.checkpoint.tensors.items():
        yield key, tensor.dtype.name, tensor.shape, source.tensors[key].dtype.name
        if isinstance(tensor.chunks, Ranges):
            yield [tuple(each) for each in tensor.chunks.each()]
        else:
            yield from tensor.chunks
