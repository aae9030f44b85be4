"""Checkpoints of which one value in one pickle is another than it was: an error, or a checkpoint
whose chunks lie in their files.

The bytes are (case, file, node, value) as four little-endian numbers, and again for each change;
what is left over says what is made of it, as each takes long.
The CRC-32s and the places of the tensors' bytes stay right, so that what is wrong is what is said.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.fuzzing import scratch
from tests.golden_files import DEEPSPEED, TORCH
from tests.io.torchzip.archives import archive_bytes
from zerotools import formats
from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import ZerotoolsError
from zerotools.io.torchzip.pickle_values import Global, Size, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps_renumbered
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.unpickle import loads
from zerotools.ops.conversions import consolidate, conversion, convert
from zerotools.ops.inspection.inspect import inspect

CASES = (
    DEEPSPEED / "z0-fp16-w1",
    DEEPSPEED / "z2-bf16-w2",
    DEEPSPEED / "z2-fp32-w4-round-robin",
    DEEPSPEED / "z3-bf16-w2",
    DEEPSPEED / "bf16-optimizer-w2",
    DEEPSPEED / "tensor-parallel-z1-bf16-w4",
    DEEPSPEED / "pipeline-z1-fp32-w4",
    DEEPSPEED / "experts-z2-bf16-w2",
    DEEPSPEED / "universal-z2-bf16-w3",
    TORCH / "fsdp2-verl-w3",
    TORCH / "fsdp1-sharded-bin-w2",
    TORCH / "training-file",
)
STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**40, 2**70, 1.5, float("nan"), "", "a", "(a+)+$", b"", b"x", (), [], {},
    [[]], (None,), (2**62,) * 3, (-1,), (1, 2), [1, 2], Size((2**62, 2**62)), Size((1,)),
    Global("x", "y"), Opaque("x", "y"), Opaque("x", "y", state=(1, 2)), {"a": 1}, {0: 1}, {1, 2},
)  # fmt: skip
MOST_CHANGES = 3
TORCH_FILE = "training-file"
WRITTEN = ("deepspeed", "universal", "dcp")
_CHANGE = struct.Struct("<BBHB")


def check(data: bytes) -> None:
    """`data` says what changes."""
    changes = list(_CHANGE.iter_unpack(data[: len(data) // _CHANGE.size * _CHANGE.size]))
    if not changes:
        return
    case = CASES[changes[0][0] % len(CASES)]
    root = _copy(case)
    names = _names(root)
    changed: set[str] = set()
    try:
        for _, file, node, value in changes[:MOST_CHANGES]:
            name = names[file % len(names)]
            if name not in changed:
                changed.add(name)
                _change(case, root, name, node, STRANGE[value % len(STRANGE)])
        looks = data[len(changes) * _CHANGE.size :]
        _LOOKS[looks[0] % len(_LOOKS) if looks else 0](root)
    finally:
        for name in changed:
            shutil.copyfile(case / "checkpoint" / name, root / name)


@cache
def _copy(case: Path) -> Path:
    there = scratch.scratch("checkpoint") / case.name
    return Path(shutil.copytree(case / "checkpoint", there))


@cache
def _names(root: Path) -> list[str]:
    found = (path for path in sorted(root.rglob("*")) if path.suffix in (".pt", ".bin"))
    return [str(path.relative_to(root)) for path in found if "legacy" not in path.name]


def _change(case: Path, root: Path, name: str, node: int, value: Any) -> None:
    source = case / "checkpoint" / name
    file = TorchFile.open(source.parent, source.name)  # anew, as it is changed
    places = list(_places(file.tree))
    if not places:
        return
    holder, key = places[node % len(places)]
    if isinstance(holder, Opaque):
        object.__setattr__(holder, key, (value,) if key == "args" else value)
    else:
        holder[key] = value
    pickle, storages = dumps_renumbered(file.tree)
    data = source.read_bytes()
    found = [data[(at := file.payload(each)) : at + each.nbytes] for each in storages]
    (root / name).write_bytes(archive_bytes(loads(pickle, source=name), found))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Everything that can be changed: values of dicts and lists, and the states of objects."""
    waiting, seen = [tree], set()
    while waiting:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            for key, inner in value.items():
                yield value, key
                waiting.append(inner)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield value, index
                waiting.append(inner)
        elif isinstance(value, tuple) and not isinstance(value, StoredTensor):
            waiting += value
        elif isinstance(value, Opaque):
            yield value, "state"
            yield value, "args"
            waiting += (value.state, value.args)


def _place(root: Path) -> Path:
    return root / "checkpoint.pt" if root.name == TORCH_FILE else root


def _inspect(root: Path) -> None:
    with suppress(ZerotoolsError):
        checkpoint = formats.read_any(_place(root))
        inspect(checkpoint)
        formats.training_of(checkpoint)


def _consolidate(root: Path) -> None:
    """As it does before it writes."""
    with suppress(ZerotoolsError):
        out = root.with_name("out")
        conversion.prove_coverage(
            consolidate.prepare_export(_place(root), out, consolidate.Options())
        )


def _convert(to: str, root: Path) -> None:
    """As it does before it writes."""
    with suppress(ZerotoolsError):
        done = convert.prepare_convert(_place(root), root.with_name("out"), to, {"force": True})
        if isinstance(done, conversion.Conversion):
            conversion.prove_coverage(done)


_LOOKS: tuple[Callable[[Path], None], ...] = (
    _inspect,
    _consolidate,
    *(partial(_convert, to) for to in WRITTEN),
)
