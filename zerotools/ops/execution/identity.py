"""What an output is made from: an interrupted run resumes only if none of it changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from zerotools import __version__
from zerotools.core.checkpoint import Checkpoint, Stamp, Target
from zerotools.core.ranges import Ranges


def identity_of(
    source: Checkpoint, target: Target, request: str, stamps: Mapping[Path, Stamp]
) -> dict[str, str]:
    """Digests by what they are digests of; they are for comparing only. `stamps` are of all files
    that were read."""
    return {
        "source files": _digest(_source_facts(stamps)),
        "options": _digest([request]),
        "layout": _digest(_layout_facts(source, target)),
        "version of zerotools": __version__,
    }


def _digest(facts: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(repr(fact).encode() + b"\n")
    return digest.hexdigest()


def _source_facts(stamps: Mapping[Path, Stamp]) -> Iterator[object]:
    """Every file, without its device: a restart may give the same disk another number."""
    for path, stamp in sorted(stamps.items()):
        yield os.fsencode(path), stamp.size, stamp.mtime_ns, stamp.inode


def _layout_facts(source: Checkpoint, target: Target) -> Iterator[object]:
    for file, plan in target.files.items():
        yield file, plan.size, plan.literals, plan.carried, plan.checksums, plan.zeros
    for key, tensor in target.checkpoint.tensors.items():
        yield key, tensor.dtype.name, tensor.shape, source.tensors[key].dtype.name
        if isinstance(tensor.chunks, Ranges):
            yield [tuple(each) for each in tensor.chunks.each()]
        else:
            yield from tensor.chunks
