"""What a golden case that is made again must have in common with the committed one.

Names, types, shapes, where each tensor lies, the order of parameters, files, and all that is not a
tensor: exactly. Values: within `TOLERANCE`, because bits of what was *computed* depend on the
processor (an optimizer's step with or without fused multiply-add, the order of a sum). Values that
are not computed, counts and flags, are integers or `step`, and equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - teaches numpy bfloat16
import numpy as np
from safetensors.numpy import load_file

from tests.layouts import load
from zerotools.core.checkpoint import Checkpoint, Opaque
from zerotools.formats import read, training_of
from zerotools.io.numeric.dtype_casts import Array

TOLERANCE: Mapping[str, tuple[float, float]] = {
    "float32": (1e-5, 2e-8),
    "float16": (2**-10, 2e-8),
    "bfloat16": (2**-7, 2e-8),
}
"""By type: relative and absolute. One rounding of 16 bits, and of fp32 what a few steps add up to:
torch's kernels with and without AVX differ by up to 2e-9 here."""


def differences(again: Path, committed: Path) -> list[str]:
    """What is not as it must be in the case directory `again`, in sentences."""
    found = []
    if (have := _names_below(again)) != (wanted := _names_below(committed)):
        return [f"other files: {sorted(have ^ wanted)}"]
    for path in sorted(committed.glob("truth*.json")):
        if json.loads((again / path.name).read_text()) != json.loads(path.read_text()):
            found.append(f"{path.name} says other things")
    for path in sorted(committed.glob("truth*.safetensors")):
        found += _tensors_differ(path.name, load_file(again / path.name), load_file(path))
    both = [read(directory / "checkpoint") for directory in (again, committed)]
    return found + list(_checkpoints_differ(*both))


def _names_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def _tensors_differ(
    where: str, found: Mapping[str, Array], wanted: Mapping[str, Array]
) -> Iterator[str]:
    if found.keys() != wanted.keys():
        yield f"{where}: other tensors: {sorted(found.keys() ^ wanted.keys())}"
        return
    for name, expected in wanted.items():
        value = found[name]
        if (value.dtype, value.shape) != (expected.dtype, expected.shape):
            yield f"{where}: {name} is {value.dtype}{value.shape}"
        elif not _are_close(name, value, expected):
            worst = np.abs(value.astype(np.float64) - expected.astype(np.float64)).max()
            yield f"{where}: {name} differs by {worst:.3g}"


def _are_close(name: str, value: Array, expected: Array) -> bool:
    if name.endswith("|step") or expected.dtype.name not in TOLERANCE:
        return value.tobytes() == expected.tobytes()
    relative, absolute = TOLERANCE[expected.dtype.name]
    a, b = value.astype(np.float64), expected.astype(np.float64)
    return bool(np.allclose(a, b, rtol=relative, atol=absolute))


def _checkpoints_differ(found: Checkpoint, wanted: Checkpoint) -> Iterator[str]:
    if list(found.tensors) != list(wanted.tensors):
        yield "checkpoint: other tensors, or in another order"
        return
    for key, expected in wanted.tensors.items():
        tensor = found.tensors[key]
        if (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
            yield f"checkpoint: {key} is {tensor.dtype.name} of shape {tensor.shape}"
        elif list(tensor.chunks) != list(expected.chunks):
            yield f"checkpoint: {key} lies elsewhere"
        else:
            pair = (load(found, key), load(wanted, key))
            yield from _tensors_differ(
                "checkpoint", *({f"{key.name}|{key.role}": each} for each in pair)
            )
    if found.aliases != wanted.aliases:
        yield f"checkpoint: other tied names: {found.aliases}"
    if _plain(found.state) != _plain(wanted.state):
        yield "checkpoint: another state beside the tensors"
    if _plain(training_of(found)) != _plain(training_of(wanted)):
        yield "checkpoint: another training state"


def _plain(value: Any) -> Any:
    """A tree that compares equal where its objects of foreign classes have equal parts."""
    if isinstance(value, Opaque):
        parts = (value.args, value.state, dict(value.kwargs), value.items, value.appended)
        return (value.module, value.name, value.called, *map(_plain, parts))
    if isinstance(value, Mapping):
        return {key: _plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value
