"""The config file of accelerate that would start one process for all GPUs of a job.

Run as a program by the interpreter of a job, this file answers as JSON; its argument is the job's
request to accelerate, as JSON: `{"options": [...], "directory": "..."}`. It takes nothing but the
standard library, and the YAML that accelerate needs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

KINDS = ("multi_gpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "tpu", "tpu_use_cluster")
"""Options that choose the kind of launch; they override a config file."""
ALONE = ("NO", False, None)
"""The values of `distributed_type` in a file for one process; YAML takes `NO` for a boolean."""


def refusal(path: str, gpus: int) -> str:
    """Return the sentence for a job of several GPUs, with the path that `single` returns."""
    return (
        f"{path}: distributed_type is NO, so accelerate starts one process for {gpus} GPUs; add "
        '"--multi_gpu" to script.launcher_options, or run accelerate config'
    )


def single(options: Sequence[str], directory: str) -> str | None:
    """Return the path of the config file that makes accelerate start one process. None: it starts
    one for each GPU, or cannot read the file and reports that itself."""
    words = {option.partition("=")[0].removeprefix("--").replace("-", "_") for option in options}
    if words & set(KINDS):
        return None
    path = _config_file(options, directory)
    try:
        tree = _read(path)
    except (OSError, ValueError, ImportError):
        return None
    if not isinstance(tree, dict) or "distributed_type" not in tree:
        return None
    return str(path) if tree["distributed_type"] in ALONE else None


def _config_file(options: Sequence[str], directory: str) -> Path:
    """As `accelerate.commands.config.config_args` has it."""
    for place, option in enumerate(options):
        name, _, value = option.partition("=")
        if name in ("--config_file", "--config-file"):
            return Path(directory, value or "".join(options[place + 1 : place + 2]))
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", os.path.join(caches, "huggingface"))  # noqa: PTH118
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"


def _read(path: Path) -> Any:
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    yaml: Any = import_module("yaml")  # the job's interpreter has it: accelerate needs it
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


if __name__ == "__main__":
    print(json.dumps(single(**json.loads(sys.argv[1]))))
