"""Names of models and datasets on a hub, and the commands that fetch them."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ALONE = re.compile(r"[A-Za-z0-9][\w.-]*")
OWN_CODE = re.compile(
    r"(?i)(?:^|/)(?:chatglm[23]?-6b|qwen-(?:1_8b|7b|14b|72b)|baichuan2?-|internlm2?-|moss-|yi-vl-)"
)
"""Models of which transformers has no code, by their names."""
_WITH_MODELSCOPE = "ms-swift"


def is_hub_name(name: str) -> bool:
    """Return whether `name` can be OWNER/NAME on a hub."""
    return _NAME.fullmatch(name) is not None


def fetch_command(name: str, *, kind: str, who: str) -> str:
    """Return the command that downloads `name` into the directory of that name. `kind` is `model`
    or `dataset`; `who` is the program that names it."""
    if who == _WITH_MODELSCOPE:
        return f"modelscope download --{kind} {name} --local_dir {name}"
    if _ALONE.fullmatch(name) is None and not is_hub_name(name):
        return f"{name} is not here; put it there"
    option = " --repo-type dataset" if kind == "dataset" else ""
    return f"hf download{option} {name} --local-dir {name}"
