"""The checks, by name and in order: each looks at the device that it is given, and says what it has
found.

Run as `python -m harness.gpu.looks NAME DEVICE DIRECTORY`, its last line is
`{"found", "ok", "memory"}`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from harness.gpu import daemon_jobs, engines, figures, predicted, training
from harness.gpu.checks import Check, Found, missing
from harness.gpu.kernels import attention, kernels
from harness.launching import ROOT
from harness.started import run

WANTED = ("transformers", "deepspeed", "accelerate", "peft", "bitsandbytes", "pytest", "pynvml")
PROGRAMS = ("nvcc", "g++", "ninja")
DRIVER = Path("/proc/driver/nvidia/version")
MARKED_SECONDS = 60.0
READINGS = 200
ANSWER_SECONDS = 2.0


def versions(device: str, directory: Path) -> Found:
    """Compare torch with what jobs take and with the device, and name the packages that later
    checks miss."""
    import torch

    from zerotools.io.files.packages import REQUIREMENTS, is_older

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no card"
    absent = [name for name in WANTED if missing(name) is not None]
    absent += [name for name in PROGRAMS if shutil.which(name) is None]
    words = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {_driver()}, {card}"
    words += f"; missing: {', '.join(absent)}" if absent else ""
    is_built = device == "cpu" or torch.cuda.is_available()
    return Found(words, is_built and not is_older(torch.__version__, REQUIREMENTS["torch"]))


def _driver() -> str:
    """Return the driver's version, as its module tells it."""
    try:
        said = DRIVER.read_text("utf-8")
    except OSError:
        return "no driver"
    found = re.search(r"Kernel Module\D*([\d.]+)", said)
    return f"driver {found[1]}" if found else "a driver"


def answers(device: str, directory: Path) -> Found:
    """Measure the slowest of many readings of NVML."""
    from zerotools.sensors.nvml import NvmlProbe

    probe, slowest = NvmlProbe(), 0.0
    first = probe.read()
    for _ in range(READINGS):
        began = time.monotonic()
        last = probe.read()
        slowest = max(slowest, time.monotonic() - began)
    probe.close()
    words = f"{len(last.gpus)} GPUs, slowest {slowest:.3f} s; {first.error or last.error or ''}"
    return Found(words, bool(last.gpus) and last.error is None and slowest < ANSWER_SECONDS)


def groups(device: str, directory: Path) -> Found:
    """Split the group of the ranks into a mesh, and compare sums over one rank with the terms."""
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from zerotoolsd.trainer.rank.group import joined
    from zerotoolsd.trainer.rank.settings import Rank

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with joined(Rank(index=0, local=0, world_size=1), device) as group:
        mesh = init_device_mesh(device, (1, 1), mesh_dim_names=("replicate", "shard"))
        values = torch.arange(1.0, 1003.0, device=group.device)
        summed = values.clone()
        for name in ("replicate", "shard"):
            dist.all_reduce(summed, group=mesh.get_group(name))
        wrong = int((summed != values).sum())
        total = group.total([2.5])
    return Found(f"{wrong} of {len(values)} elements differ", not wrong and total == [2.5])


def marked(device: str, directory: Path) -> Found:
    """Run the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/daemon/trainer"]
    done = run(command, timeout=MARKED_SECONDS, cwd=ROOT, capture_output=True, text=True)
    said = done.stdout.rstrip().rpartition("\n")[2]
    return Found(said, done.returncode == 0 and "skipped" not in said)


NO_GPU = "a CPU has no driver"
CHECKS: Mapping[str, Check] = {
    "versions": Check("a torch that jobs take, for this device", 120, versions),
    "NVML answers": Check(f"each in {ANSWER_SECONDS:g} s", 120, answers, NO_GPU),
    "tests of mark gpu": Check("all pass", 2 * MARKED_SECONDS, marked, NO_GPU),
    "groups of one rank": Check("all elements are summed", 120, groups),
    "attention": Check("repeated heads as shared ones, 1e-5", 120, attention),
    "attention kernels": Check("those that has_flash names", 60, kernels, "they are of GPUs"),
    **{name: training.CHECKS[name] for name in training.FIRST},
    **predicted.CHECKS,
    **{name: each for name, each in training.CHECKS.items() if name not in training.FIRST},
    **daemon_jobs.CHECKS,
    **engines.CHECKS,
    **figures.CHECKS,
}


def main(name: str, device: str, directory: str) -> None:
    """Look, and print what was found."""
    from harness.forked import close_servers

    found = CHECKS[name].look(device, Path(directory))
    close_servers()
    answer = {"found": found.words, "ok": found.ok, "memory": list(found.memory)}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
