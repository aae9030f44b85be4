"""Check that DeepSpeed itself accepts a configuration.

The job's interpreter runs this file as a program, so it imports only the standard library and
DeepSpeed. Its argument is a file with `{"config": ..., "world_size": n, "device": "cuda"}`. The
last line of its output is JSON: null, or the reason why DeepSpeed refuses the configuration.

No process group is made and no kernel is compiled. Each rank of a job makes the same check when it
starts.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_ON_GPUS = {"lamb": "fused_lamb", "lion": "fused_lion"}
"""Optimizers that DeepSpeed compiles only for GPUs, and for which torch has no substitute."""


def deepspeed_refusal(config: dict[str, Any], world_size: int, device: str = "cpu") -> str | None:
    """Return DeepSpeed's own message if it refuses `config` for `world_size` ranks on a `device`;
    None if DeepSpeed accepts the config.
    """
    os.environ["DS_ACCELERATOR"] = "cpu"  # the check does not use a GPU
    theirs = import_module("deepspeed.runtime.config")
    read = theirs.DeepSpeedConfig._initialize_params

    def read_sized(self: Any, tree: Any) -> None:
        self.world_size = world_size  # without a process group DeepSpeed assumes 1
        read(self, tree)

    kind = type("Sized", (theirs.DeepSpeedConfig,), {"_initialize_params": read_sized})
    # The section `aio` is left out, because `aio.use_gds` would need a GPU.
    asked = copy.deepcopy({name: value for name, value in config.items() if name != "aio"})
    try:
        taken: Any = kind(asked)
    except Exception as error:  # assertions, pydantic's and DeepSpeed's own
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text[:600]}" if text else type(error).__name__
    name = taken.optimizer_name
    if name is None or name in theirs.DEEPSPEED_OPTIMIZERS:
        return _not_compiled(str(name)) if device == "cuda" else None
    if not hasattr(import_module("torch.optim"), name):
        return f"{name} is neither an optimizer of DeepSpeed nor of torch.optim"
    return None


def _not_compiled(optimizer: str) -> str | None:
    operator = _ON_GPUS.get(optimizer)
    if operator is None or import_module("deepspeed.git_version_info").installed_ops.get(operator):
        return None
    try:
        import_module("deepspeed.ops.op_builder.builder").installed_cuda_version()
    except Exception as error:  # MissingCUDAException, or another error in older releases
        return f"it cannot compile {operator} for {optimizer} here: {error}"
    return None


def main() -> None:
    """Check the configuration in the file that the first command-line argument names, and print
    the result.
    """
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    why = deepspeed_refusal(asked["config"], asked["world_size"], asked["device"])
    sys.stdout.write("\n" + json.dumps(why))


if __name__ == "__main__":
    main()
