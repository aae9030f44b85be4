"""Names of models and datasets on a hub, and the commands that fetch them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ALONE = re.compile(r"[A-Za-z0-9][\w.-]*")
OWN_CODE = re.compile(
    r"(?i)(?:^|/)(?:chatglm[23]?-6b|qwen-(?:1_8b|7b|14b|72b)|baichuan2?-|internlm2?-|moss-|yi-vl-)"
)
"""Models without code in transformers, by their names."""
_DIRECTORIES = frozenset(
    (
        *("checkpoint", "checkpoints", "ckpt", "ckpts", "data", "dataset", "datasets"),
        *("model", "models", "out", "output", "outputs", "pretrained", "result", "results"),
        *("train", "weights"),
    )
)
"""First parts of local paths that are not owners on a hub."""
_WITH_MODELSCOPE = "ms-swift"


def is_hub_name(name: str) -> bool:
    """Return whether `name` can be OWNER/NAME on a hub."""
    owner = name.partition("/")[0]
    return _NAME.fullmatch(name) is not None and owner.lower() not in _DIRECTORIES


def is_on_hub(name: str, found: Callable[[str], Path]) -> bool:
    """Return whether `name` can be OWNER/NAME on a hub and is not a path here: `found`, which
    returns the path of a name, finds no directory OWNER."""
    owner = name.partition("/")[0]
    return is_hub_name(name) and not (found(name).exists() or found(owner).exists())


def fetch_command(name: str, *, kind: str, who: str) -> str:
    """Return the command that downloads `name` into the directory of that name. `kind` is `model`
    or `dataset`; `who` is the program that names it."""
    if who == _WITH_MODELSCOPE:
        return f"modelscope download --{kind} {name} --local_dir {name}"
    if _ALONE.fullmatch(name) is None and not is_hub_name(name):
        return f"{name} is not here; put it there"
    option = " --repo-type dataset" if kind == "dataset" else ""
    return f"hf download{option} {name} --local-dir {name}"
