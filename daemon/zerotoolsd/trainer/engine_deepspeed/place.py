"""DeepSpeed in this process: which accelerator, where its operators are built, what it may use.

It decides these things when it is imported, by environment variables.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.deepspeedconfig import ADAMS, at, device_of
from zerotools.jobs.rules import FP16_ON_CPU
from zerotools.jobs.spec import JobSpec

BUILT = "torch_extensions"


def import_deepspeed(spec: JobSpec) -> Any:
    """The module, set up for the device of `spec`.

    Raises:
        BadRequest: this interpreter has none.
    """
    if spec.device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    programs = Path(sys.executable).parent
    if (programs / "ninja").exists():
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if os.access(sys.prefix, os.W_OK):
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / BUILT))
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        raise BadRequest(
            f"{sys.executable} has no deepspeed, which the job's engine needs: install it there "
            f'({sys.executable} -m pip install "deepspeed>=0.16"), or name another python in the '
            "job file"
        ) from None
    deepspeed.utils.logger.setLevel(logging.WARNING)
    # Of collectives that torch renamed; DeepSpeed calls them in every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    if spec.device == "cpu" and spec.env.get(FP16_ON_CPU) == "1":
        _allow_fp16_on_cpu(deepspeed)
    return deepspeed


def _allow_fp16_on_cpu(deepspeed: Any) -> None:
    """The one place where a check of DeepSpeed's is overruled: its CPU accelerator says that fp16
    is not supported, where it only has no fast kernels for it."""
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True


def adam_to_be_built(deepspeed: Any, config: Mapping[str, Any]) -> str | None:
    """The Adam of DeepSpeed's that `config` needs and that cannot be built here; None where there
    is nothing to build, or to miss."""
    if str(at(config, "optimizer.type", "")).lower() not in ADAMS:
        return None
    if at(config, "optimizer.params.torch_adam") is True:
        return None
    offloaded = device_of(config, "optimizer") != "none"
    name = "CPUAdamBuilder" if offloaded else "FusedAdamBuilder"
    accelerator = deepspeed.accelerator.get_accelerator()
    builder = accelerator.create_op_builder(name)
    if builder is not None and deepspeed.git_version_info.installed_ops.get(builder.name):
        return None
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if builder is not None and compiler and shutil.which("ninja") and builder.is_compatible(False):
        return None
    return "DeepSpeedCPUAdam" if offloaded else "FusedAdam"


def with_torch_adam(config: dict[str, Any]) -> None:
    """Have torch's Adam do the work of DeepSpeed's, by its defaults."""
    parameters = config["optimizer"].setdefault("params", {})
    parameters["torch_adam"] = True
    parameters.setdefault("weight_decay", 0.0)  # torch's own default is another
