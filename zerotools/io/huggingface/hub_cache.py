"""The config of a model by its name, from a directory or from the Hub's download cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

from zerotools.io.huggingface.model_sidecars import CONFIG

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def config_of_model(name: str) -> Path | None:
    """Return the config.json of the model `name`, a directory or a name of the Hub, or None if it
    is not on this machine."""
    if (Path(name) / CONFIG).is_file():
        return Path(name) / CONFIG
    if not _NAME.fullmatch(name):
        return None
    repository = _cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    path = repository / "snapshots" / revision / CONFIG
    return path if re.fullmatch(r"\w+", revision) and path.is_file() else None


def _cache() -> Path:
    for name, below in (("HF_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if os.environ.get(name):
            return Path(os.environ[name], below)
    return Path.home() / ".cache" / "huggingface" / "hub"
