"""The hidden size of a job's model, which Hugging Face's Trainer takes bucket sizes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.huggingface.class_defaults import full_config
from zerotools.jobs.imports.reading.job_keys import look_up
from zerotools.jobs.text.document import read_text
from zerotools.jobs.text.home_paths import expanded


def hidden_size(job: Mapping[str, Any], base_dir: Path) -> int | None:
    """Return `hidden_size` of the model's config, or the largest of `hidden_sizes`; None if
    unknown.

    A config that cannot be read is not judged here: the job itself is refused for it later.
    """
    config = look_up(job, "model.config")
    path = look_up(job, "model.path")
    if isinstance(path, str):
        config = _read(base_dir, f"{path}/config.json")
    elif isinstance(config, str):
        config = _read(base_dir, config)
    if not isinstance(config, Mapping):
        return None
    inner = config.get("text_config")
    found = _size({key: value for key, value in config.items() if key != "text_config"})
    return _size(inner) if found is None and isinstance(inner, Mapping) else found


def _read(base_dir: Path, path: str) -> Any:
    try:
        return json.loads(read_text(base_dir / expanded(path), "model config"))
    except (BadRequest, ValueError, RecursionError):
        return None


def _size(config: Mapping[str, Any]) -> int | None:
    config = full_config(config)
    sizes = config.get("hidden_sizes")
    listed = sizes if isinstance(sizes, list) else []
    found = [size for size in [config.get("hidden_size"), *listed] if type(size) is int]
    return found[0] if type(config.get("hidden_size")) is int else max(found, default=None)
