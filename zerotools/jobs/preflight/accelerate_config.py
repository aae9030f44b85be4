"""Check that accelerate's config file lets a job use all GPUs that it gets.

The job's interpreter runs this file as a program. Its argument is JSON: `{"options": [...],
"directory": "...", "gpus": n}` with the options for accelerate. The program prints JSON, and
imports only the standard library and the YAML package that accelerate needs.
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
"""Options of `accelerate launch` that choose the kind of launch. They override the config file."""
ALONE = ("NO", "MULTI_CPU", False, None)
"""Values of `distributed_type` with which accelerate starts only one process. `use_cpu` then
decides where it trains. YAML reads `NO` as false."""


def accelerate_refusal(options: Sequence[str], directory: str, gpus: int) -> str | None:
    """Return the reason why accelerate does not start one process for each of the job's `gpus`
    GPUs, with a remedy.

    `directory` is the working directory of the job.

    Return None if accelerate starts these processes. Also return None if accelerate cannot read its
    config file, because accelerate reports this itself.
    """
    words = {option.partition("=")[0].removeprefix("--").replace("-", "_") for option in options}
    if words & {*KINDS, "cpu"}:
        return None
    path = _config_file(options, directory)
    try:
        tree = _read(path)
    except (OSError, ValueError, ImportError):
        return None
    if not isinstance(tree, dict) or "distributed_type" not in tree:
        return None
    if tree["distributed_type"] not in ALONE:
        return None
    if tree.get("use_cpu") is True:
        return (
            f"{path}: use_cpu is true, so accelerate trains on the CPU; set use_cpu to false, or "
            'device = "cpu" in the job file'
        )
    if gpus == 1:
        return None
    kind = tree["distributed_type"] or "NO"
    return (
        f"{path}: distributed_type is {kind}, so accelerate starts only one process for {gpus} "
        'GPUs; add "--multi_gpu" to script.launcher_options, or run accelerate config'
    )


def _config_file(options: Sequence[str], directory: str) -> Path:
    """Return the path of the config file that accelerate will read
    (`accelerate.commands.config.config_args`).
    """
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
    print(json.dumps(accelerate_refusal(**json.loads(sys.argv[1]))))
