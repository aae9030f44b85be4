"""The checks, by name: each looks at the device that it is given, and says what it has found.

Run as `python -m harness.gpu.looks NAME DEVICE DIRECTORY`, its last line is `{"found", "ok"}`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.launching import ROOT, TINY_LLAMA, job, start
from harness.started import run

STEPS, LONG = 6, 60
MARKED_SECONDS = 60.0
GROUPED = {**TINY_LLAMA, "num_key_value_heads": 1}
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
"""Of losses, relative to those of fp32 on the CPU."""
READINGS = 200
ANSWER_SECONDS = 2.0


class Found(NamedTuple):
    """What a check has seen, in words, and whether that is what it expects."""

    words: str
    ok: bool


class Check(NamedTuple):
    """One row: what passes, how long it may take, and on which devices it can be run."""

    expected: str
    seconds: float
    look: Callable[[str, Path], Found]
    devices: tuple[str, ...] = ("cuda", "cpu")


def versions(device: str, directory: Path) -> Found:
    """Whether torch is one that jobs take, built for the device."""
    import torch

    from zerotools.io.files.packages import REQUIREMENTS, is_older

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no card"
    words = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {card}"
    is_built = device == "cpu" or torch.cuda.is_available()
    return Found(words, is_built and not is_older(torch.__version__, REQUIREMENTS["torch"]))


def answers(device: str, directory: Path) -> Found:
    """How long the slowest of many readings of NVML takes."""
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
    """Whether the group of the ranks is split into a mesh, and sums over one rank are whole."""
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


def _runs(device: str, precision: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for stage in range(4):
        yield f"stage {stage}", {"zero": {"stage": stage}}
    if device == "cuda" or precision == "fp32":
        yield "optimizer on the host", {"zero": {"stage": 2}, "offload": {"optimizer": "cpu"}}
        both = {"optimizer": "cpu", "params": "cpu"}
        yield "parameters on the host", {"zero": {"stage": 3}, "offload": both}


def _job(device: str, precision: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    train = {"steps": STEPS, "precision": precision}
    tree = job(ROOT / "ARCHITECTURE.md", model={"config": GROUPED}, train=train, **changes)
    if device == "cuda":
        del tree["ranks"]
        tree |= {"device": "cuda", "gpus": 1}
    return tree


def training(precision: str) -> Callable[[str, Path], Found]:
    """Return the check that losses in `precision` are those of fp32 on the CPU."""

    def look(device: str, directory: Path) -> Found:
        reference = start(directory / "reference", _job("cpu", "fp32", {"zero": {"stage": 0}}))
        seen, failed = dict[str, dict[int, float]](), list[str]()
        for name, changes in _runs(device, precision):
            attempt = start(directory / name.replace(" ", "-"), _job(device, precision, changes))
            if attempt.finish() != [0]:
                failed.append(f"{name}: {attempt.log().rstrip().rpartition(chr(10))[2]}")
            else:
                seen[name] = attempt.losses()
        if reference.finish() != [0]:  # it ran beside them
            return Found("the reference on the CPU failed", ok=False)
        wanted = reference.losses()
        apart = {name: max(_distances(wanted, found)) for name, found in seen.items()}
        worst = max(apart, key=lambda name: apart[name], default="none")
        words = f"{len(apart)} runs, {worst} is {apart.get(worst, math.inf):.1e} apart"
        ok = not failed and all(each <= TOLERANCE[precision] for each in apart.values())
        return Found("; ".join([words, *failed]), ok)

    return look


def _distances(wanted: Mapping[int, float], found: Mapping[int, float]) -> Iterator[float]:
    for step, loss in wanted.items():
        distance = abs(found.get(step, math.inf) - loss) / loss
        yield distance if math.isfinite(distance) else math.inf


def attention(device: str, directory: Path) -> Found:
    """Whether repeated heads of keys attend as shared ones, forward and backward."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    shapes = ((1, 8, 128, 32), (1, 2, 128, 32), (1, 2, 128, 32))
    query, key, value = (torch.randn(each, device=device, requires_grad=True) for each in shapes)
    found = []
    for is_shared in (True, False):
        keys, values = (
            each if is_shared else each.repeat_interleave(4, dim=1) for each in (key, value)
        )
        result = scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=is_shared
        )
        found.append([result, *torch.autograd.grad(result.square().sum(), (query, key, value))])
    apart = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found, strict=True))
    return Found(f"{apart:.1e} apart", apart < TOLERANCE["fp32"])


def kernels(device: str, directory: Path) -> Found:
    """Whether each fused kernel takes what `has_flash` says."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from zerotoolsd.trainer.model.fused_attention import has_flash

    capability, wrong = torch.cuda.get_device_capability(), []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        query, key = (torch.randn(1, n, 256, 64, device=device, dtype=dtype) for n in (8, 2))
        repeated = key.repeat_interleave(4, dim=1)
        cases = [(SDPBackend.FLASH_ATTENTION, key, has_flash(dtype, capability))]
        if dtype != torch.bfloat16 or has_flash(dtype, capability):
            cases.append((SDPBackend.EFFICIENT_ATTENTION, repeated, True))
        for backend, keys, expected in cases:
            try:
                with sdpa_kernel(backend):
                    shared = {"is_causal": True, "enable_gqa": keys is key}
                    scaled_dot_product_attention(query, keys, keys, **shared)
                taken = True
            except RuntimeError:  # "No available kernel"
                taken = False
            if taken is not expected:
                wrong.append(f"{backend.name} of {dtype} is {'' if taken else 'not '}there")
    return Found("; ".join(wrong) or f"as expected of {capability}", not wrong)


def resuming(device: str, directory: Path) -> Found:
    """Whether a run that is killed after its first checkpoint goes on with the same losses."""
    tree = _job(device, "fp32", {"zero": {"stage": 2}, "checkpoint": {"every": 3}})
    tree["train"]["steps"] = LONG
    whole, killed = (start(directory / name, tree) for name in ("whole", "killed"))
    killed.mailbox.wait_for("checkpoint")
    killed.end()
    again = start(directory / "killed", tree)
    statuses = [*whole.finish(), *again.finish()]
    wanted, found = whole.losses(), again.losses()
    worst = max((abs(loss - wanted[step]) for step, loss in found.items()), default=math.inf)
    words = f"statuses {statuses}, from step {min(found, default=0)} on {worst:.1e} apart"
    return Found(words, statuses == [0, 0] and worst == 0 and min(found) > 1)


def marked(device: str, directory: Path) -> Found:
    """Whether the tests pass that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/daemon/trainer"]
    done = run(command, timeout=MARKED_SECONDS, cwd=ROOT, capture_output=True, text=True)
    said = done.stdout.rstrip().rpartition("\n")[2]
    return Found(said, done.returncode == 0 and "skipped" not in said)


CHECKS: Mapping[str, Check] = {
    "versions": Check("a torch that jobs take, for this device", 120, versions),
    "NVML answers": Check(f"each in {ANSWER_SECONDS:g} s", 120, answers, ("cuda",)),
    "tests of mark gpu": Check("all pass", 2 * MARKED_SECONDS, marked, ("cuda",)),
    "groups of one rank": Check("all elements are summed", 120, groups),
    "attention": Check("repeated heads as shared ones, 1e-5", 120, attention),
    "attention kernels": Check("those that has_flash names", 60, kernels, ("cuda",)),
    "training in fp32": Check("losses of fp32 on the CPU, 1e-5", 180, training("fp32")),
    "training in bf16": Check("losses of fp32 on the CPU, 2e-2", 180, training("bf16")),
    "training in fp16": Check("losses of fp32 on the CPU, 2e-2", 180, training("fp16"), ("cuda",)),
    "killed and resumed": Check("the losses of a run that was not, bit for bit", 120, resuming),
}


def main(name: str, device: str, directory: str) -> None:
    """Look, and print what was found."""
    from harness.forked import close_servers

    found = CHECKS[name].look(device, Path(directory))
    close_servers()
    sys.stdout.write("\n" + json.dumps({"found": found.words, "ok": found.ok}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
