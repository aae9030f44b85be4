"""The changes of DeepSpeed's JSON between releases: defaults of keys, and removed keys.

Sources: the tags of DeepSpeed's repository, and these files of its releases: runtime/config.py
(`_REMOVED_TOP_LEVEL_CONFIG_KEYS`, `_REMOVED_ZERO_CONFIG_KEYS`), runtime/constants.py,
runtime/compiler.py and compile/config.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

Release = tuple[int, ...]
DEADLINE_SECONDS = 10.0
_ASK = "from importlib.metadata import version; print(version('deepspeed'))"

NEWEST: Release = (0, 19, 8)
"""The newest DeepSpeed release that these tables cover.

It is assumed if DeepSpeed is not installed for the job's Python.
"""
_CLIPS: Release = (0, 19, 3)
_COMPILES: Release = (0, 16, 6)
LEAF_MODULES: Release = (0, 18, 0)
"""The first release of DeepSpeed that has the key `zero_optimization.leaf_module`."""


@dataclass(frozen=True)
class Removal:
    """The removal of a key from DeepSpeed: the first release that refuses the key, and advice for
    users.
    """

    since: Release
    instead: str = "remove it"


_GONE_7 = Removal((0, 19, 7))
_GONE_8 = Removal((0, 19, 8))
_BATCH = "remove it, and write train_micro_batch_size_per_gpu"
_CURRICULUM = "remove it: zerotools reads the data itself"
REMOVED: Mapping[str, Removal] = {
    "nebula": _GONE_7,
    "compression_training": _GONE_7,
    "quantize_training": _GONE_7,
    "sparse_attention": _GONE_7,
    "zero_optimization.mics_shard_size": _GONE_7,
    "zero_optimization.mics_hierarchical_params_gather": _GONE_7,
    "amp": Removal((0, 19, 8), "write fp16 or bf16 instead"),
    "sparse_gradients": _GONE_8,
    "eigenvalue": _GONE_8,
    "elasticity": Removal((0, 19, 8), _BATCH),
    "graph_harvesting": _GONE_8,
    "curriculum_learning": Removal((0, 19, 8), _CURRICULUM),
    "progressive_layer_drop": _GONE_8,
    "zero_optimization.zeropp_loco_param": _GONE_8,
    "compile.enabled": Removal(_COMPILES),
    "compile.disable": Removal(_COMPILES),
    "compile.backend": Removal(_COMPILES),
    "compile.kwargs": Removal(_COMPILES),
}
OPTIMIZERS: Mapping[str, Removal] = {
    name: Removal((0, 19, 7), "write AdamW") for name in ("onebitadam", "onebitlamb", "zerooneadam")
}
"""Removed optimizer, as `optimizer.type` in lower case -> its removal."""

STRICT = (
    "zero_optimization",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
    "fp16",
    "bf16",
    "compile",
)
"""Sections in which DeepSpeed accepts no unknown key (pydantic's `extra="forbid"`): it does not
start. In other sections it ignores unknown keys.
"""


def default_clipping(release: Release) -> float:
    """Return the gradient norm to which DeepSpeed `release` clips if the JSON has no
    `gradient_clipping`. 0 means no clipping.

    Sources: GRADIENT_CLIPPING_DEFAULT in runtime/constants.py, and pull request 8068.
    """
    return 1.0 if release >= _CLIPS else 0.0


def removal_of(name: str, release: Release) -> Removal | None:
    """Return the removal of the key `name` if DeepSpeed `release` refuses the key; None if it
    accepts the key.
    """
    found = REMOVED.get(name)
    return found if found is not None and release >= found.since else None


def removed_optimizer(kind: str, release: Release) -> Removal | None:
    """Return the removal of the optimizer `kind` if DeepSpeed `release` no longer has it; None if
    it has the optimizer.
    """
    found = OPTIMIZERS.get(kind.lower())
    return found if found is not None and release >= found.since else None


def release_text(release: Release) -> str:
    """Return the release as text, such as `0.19.8`."""
    return ".".join(map(str, release))


def parse_release(text: str) -> Release | None:
    """Return the release number in a version text such as `0.19.8+cu12`; None if `text` is not
    a version.
    """
    numbers: list[int] = []
    for part in text.split("+")[0].split(".")[:3]:
        digits = "".join(c for c in part if c.isascii() and c.isdigit())
        if not digits or not part.startswith(digits):
            break
        numbers.append(int(digits[:6]))
    return tuple(numbers) or None


def installed_release(python: str | None) -> Release | None:
    """Return the release of DeepSpeed that is installed for the interpreter `python` (None: this
    interpreter).

    DeepSpeed is not imported. Return None if DeepSpeed is not installed, or if the interpreter does
    not answer within some seconds. The release is checked again when the job is queued.
    """
    if python is None:
        return _own()
    command = [python, "-c", _ASK]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=DEADLINE_SECONDS, check=False, cwd="/"
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return parse_release(done.stdout[:100].decode("ascii", "replace").strip())


def _own() -> Release | None:
    try:
        return parse_release(metadata.version("deepspeed"))
    except metadata.PackageNotFoundError:
        return None


def is_disabled(value: Any) -> bool:
    """Return whether the value of a removed key has no effect.

    This is the case for null, false, 0, -1, "", "none", an empty section, and a section in which
    each `enabled` is false or "auto".
    """
    if isinstance(value, Mapping):
        switches = list(_switches(value))
        return not value or (bool(switches) and not any(switches))
    return value in (None, False, -1, "", "none") and value is not True


def _switches(section: Mapping[str, Any]) -> list[bool]:
    """Return the value of every key `enabled` in `section`, at any depth."""
    found: list[bool] = []
    for name, value in section.items():
        if name == "enabled":
            found.append(str(value).lower() not in ("false", "auto"))
        elif isinstance(value, Mapping):
            found += _switches(value)
    return found
