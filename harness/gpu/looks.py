"""All checks, by name and in the order in which the checks run.

Run as `python -m harness.gpu.looks NAME DEVICE DIRECTORY`. The last line of the output is a JSON
object with the keys `found`, `ok` and `memory`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.gpu import (
    attention_memory,
    daemon_jobs,
    engines,
    figures,
    machine,
    predicted,
    training,
)
from harness.gpu.checks import Check, Found, missing
from harness.gpu.kernels import attention, kernels
from harness.launching import ROOT
from harness.started import run

WANTED = ("transformers", "deepspeed", "accelerate", "peft", "bitsandbytes", "pytest", "pynvml")
PROGRAMS = ("nvcc", "g++", "ninja")
DRIVER = Path("/proc/driver/nvidia/version")
MARKED_SECONDS = 60.0


def versions(device: str, directory: Path) -> Found:
    """Check that torch is new enough for jobs and supports the device.

    The result also names the packages and programs that are missing for later checks.
    """
    import torch

    from zerotools.io.files.optional_packages import REQUIREMENTS, is_older

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no card"
    absent = [name for name in WANTED if missing(name) is not None]
    absent += [name for name in PROGRAMS if shutil.which(name) is None]
    words = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {_driver()}, {card}"
    words += f"; missing: {', '.join(absent)}" if absent else ""
    is_built = device == "cpu" or torch.cuda.is_available()
    return Found(words, is_built and not is_older(torch.__version__, REQUIREMENTS["torch"]))


def _driver() -> str:
    """Return the version of the NVIDIA driver, as its kernel module reports it."""
    try:
        said = DRIVER.read_text("utf-8")
    except OSError:
        return "no driver"
    found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", said)
    return f"driver {found[1]}" if found else "a driver"


def groups(device: str, directory: Path) -> Found:
    """Check that sums over process groups of one rank are equal to the values themselves."""
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from zerotoolsd.trainer.rank.process_group import joined_group
    from zerotoolsd.trainer.rank.rank_settings import Rank

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with joined_group(Rank(index=0, local=0, world_size=1), device) as group:
        mesh = init_device_mesh(device, (1, 1), mesh_dim_names=("replicate", "shard"))
        values = torch.arange(1.0, 1003.0, device=group.device)
        summed = values.clone()
        for name in ("replicate", "shard"):
            dist.all_reduce(summed, group=mesh.get_group(name))
        wrong = int((summed != values).sum())
        total = group.total([2.5])
    return Found(f"{wrong} of {len(values)} elements differ", not wrong and total == [2.5])


def marked(device: str, directory: Path) -> Found:
    """Run the tests with the pytest mark `gpu`."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/daemon/trainer"]
    done = run(command, timeout=MARKED_SECONDS, cwd=ROOT, capture_output=True, text=True)
    said = done.stdout.rstrip().rpartition("\n")[2]
    return Found(said, done.returncode == 0 and "skipped" not in said)


CHECKS: Mapping[str, Check] = {
    "versions": Check("a torch that jobs take, for this device", 120, versions, shared=True),
    **machine.CHECKS,
    "tests of mark gpu": Check("all pass", 2 * MARKED_SECONDS, marked, machine.NO_GPU, shared=True),
    "groups of one rank": Check("all elements are summed", 120, groups, shared=True),
    "attention": Check("repeated heads as shared ones, 1e-5", 120, attention, shared=True),
    "attention kernels": Check(
        "those that has_flash names", 60, kernels, "they are of GPUs", shared=True
    ),
    **{name: training.CHECKS[name] for name in training.FIRST},
    **predicted.CHECKS,
    **attention_memory.CHECKS,
    **{name: each for name, each in training.CHECKS.items() if name not in training.FIRST},
    **daemon_jobs.CHECKS,
    **engines.CHECKS,
    **figures.CHECKS,
}


def main(name: str, device: str, directory: str) -> None:
    """Run the check `name`, and print its result."""
    from harness.forked import close_servers

    found = CHECKS[name].look(device, Path(directory))
    close_servers()
    answer = {"found": found.words, "ok": found.ok, "memory": list(found.memory)}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
