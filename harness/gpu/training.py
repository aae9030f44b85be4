"""Checks of the trainer: the same losses on a device as on the CPU, late copies, optimizers, and a
run that is killed during a save.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.gpu.checks import (
    STEPS,
    Check,
    Found,
    Look,
    curve,
    distances,
    last_line,
    missing,
    own_cores,
    same_sums,
    tree_of,
)
from harness.gpu.watched_rank import kept
from harness.launching import ENTRY, ROOT, TINY_GPT2, Attempt, start
from harness.patience import Deadline
from zerotools.runs import find_job_checkpoints

TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
"""Largest relative differences of losses and gradients (`gradients_apart`) from fp32 on the CPU."""
ELEMENT = 5
"""A single element may differ this many times as much as the whole gradient.

In 16 bits each element is rounded, and one of some thousand elements can be wrong by several
roundings.
"""
SLOW_COPIES = Path(__file__).with_name("slow_copies.py")
WATCHED = Path(__file__).with_name("watched_rank.py")
FEW = 3
RULES = {"adamw8bit": 1e-3, "muon": 1e-3, "adafactor": 1e-4}
"""The optimizers, with the largest relative differences of their losses from those on the CPU.

An 8-bit code, or a sum in bf16, may differ by one.
"""
DROPOUT = {**TINY_GPT2, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
LARGE = {"n_embd": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 32_000}
"""The sizes of a model of 335 million parameters. Its weights and AdamW's moments take 4 GB in
fp32.
"""
BASE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EVERY = 3
LONG = {"cuda": 12, "cpu": 60}
"""Number of steps of the run that is killed. A small model needs more steps, so that a save is
noticed.
"""
SAVE_SECONDS = 120.0
HOST, DISK = {"optimizer": "cpu"}, {"optimizer": "disk"}
BOTH = {"optimizer": "cpu", "params": "cpu"}
OFFLOADS = {"no offload": {}, "optimizer on the host": HOST, "optimizer on disk": DISK}
PIECES = {"micro_batch_size": 4}
"""The size of a micro batch. A step has twelve sequences."""
SIDE_BY_SIDE = 6
"""At least this number of jobs run at a time. Each job is small, and its start takes most of the
time.
"""


def runs_of(device: str, precision: str, spill: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, changes of the job) for each run.

    On a GPU, these are all combinations of stage and offload, each with one and with three micro
    batches. In 16 bits, FSDP2 sums the gradients of three micro batches over groups of one rank.
    """
    many = device == "cuda"
    for stage in range(4):
        for offload, keys in OFFLOADS.items():
            if keys and not (many or (precision == "fp32" and stage == 2)):
                continue
            place = {"path": str(spill / str(stage))} if keys is DISK else {}
            changes = {"zero": {"stage": stage}, **({"offload": {**keys, **place}} if keys else {})}
            yield f"stage {stage}, {offload}", changes
            if many or (precision == "fp32" and stage >= 2 and not keys):
                if place:
                    changes = {**changes, "offload": {**keys, "path": str(spill / f"{stage}-4")}}
                yield f"stage {stage}, {offload}, 3 micro batches", {**changes, "train": PIECES}
    if many or precision == "fp32":
        changes = {"zero": {"stage": 3}, "offload": BOTH}
        yield "stage 3, parameters on the host", changes
        yield "stage 3, parameters on the host, 3 micro batches", {**changes, "train": PIECES}


def gradients_apart(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, float]:
    """Return the relative difference of each gradient, keyed by name.

    It is the larger of two values: the norm of the difference, relative to the norm of the
    gradient; and 1/ELEMENT of the largest difference of an element, relative to the largest
    element. It is infinity if a gradient is missing, not finite, or zero although it should not be.
    """
    apart = dict[str, float]()
    for name, gradient in wanted.items():
        other, largest = found.get(name), float(gradient.abs().max())
        if other is None or other.shape != gradient.shape or (largest and not other.any()):
            apart[name] = math.inf
            continue
        difference = (other - gradient).double()
        distance = max(
            float(difference.norm()) / (float(gradient.double().norm()) or 1.0),
            float(difference.abs().max()) / (largest or 1.0) / ELEMENT,
        )
        apart[name] = distance if math.isfinite(distance) else math.inf
    return apart


def _failed(jobs: Mapping[str, Attempt]) -> list[str]:
    """Wait for the attempts. For each attempt that failed, return its name and the last line of its
    log.
    """
    return [
        f"{name}: {last_line(attempt.log())}"
        for name, attempt in jobs.items()
        if attempt.finish() != [0]
    ]


def trained(precision: str) -> Look:
    """Return a check that trains in `precision` on the device and in fp32 on the CPU.

    It compares the losses, and all gradients of the first step.
    """

    def look(device: str, directory: Path) -> Found:
        plain = tree_of("cpu", "fp32", {"zero": {"stage": 0}})
        reference = start(directory / "reference", plain, script=WATCHED)  # on other cores
        wanted, gradients = dict[int, float](), dict[str, Any]()
        runs, worst, wrong = list(runs_of(device, precision, directory)), (0.0, "none"), list[str]()
        room = max(SIDE_BY_SIDE, own_cores())
        for first in range(0, len(runs), room):
            attempts = {
                name: _watched(directory, name, tree_of(device, precision, changes))
                for name, changes in runs[first : first + room]
            }
            wrong += _failed(attempts)
            if not wanted:
                if failed := _failed({"the reference": reference}):
                    return Found("; ".join(failed), False)
                wanted, gradients = reference.losses(), kept(reference.run_dir)
            for name, attempt in attempts.items():
                parts = gradients_apart(gradients, kept(attempt.run_dir))
                parts["the loss"] = max(distances(wanted, attempt.losses()), default=math.inf)
                part = max(parts, key=lambda each: parts[each])
                worst = max(worst, (parts[part], f"{part} of {name}"))
                wrong += [f"{name}: {part} {parts[part]:.1e} apart"] * (
                    parts[part] > TOLERANCE[precision]
                )
        most = f"{worst[1]} {worst[0]:.1e} apart"
        words = f"{len(runs)} runs, {len(gradients)} gradients each, {most}"
        return Found("; ".join([words, *wrong]), bool(gradients) and not wrong)

    return look


def _watched(directory: Path, name: str, tree: dict[str, Any]) -> Attempt:
    """Start a job that stores its first gradients (`watched_rank`).

    In fp16, the first loss scale is so low that no gradient overflows.
    """
    if tree["train"]["precision"] == "fp16":
        tree["fp16"] = {"initial_scale_power": 8}
    place = directory / name.replace(" ", "-").replace(",", "")
    return start(place, tree, script=WATCHED)


def late_copies(device: str, directory: Path) -> Found:
    """Check that runs with offload are equal bit for bit, although copies begin late.

    On a GPU, the runs are also repeated unchanged, and with kernels that block the host.
    """
    ways: dict[str, tuple[Path, dict[str, str]]] = {
        "as usual": (ENTRY, {}),
        "late": (SLOW_COPIES, {}),
    }
    if device == "cuda":  # else it is known that two runs are equal
        ways["again"] = (ENTRY, {})
        ways["blocking"] = (ENTRY, {"CUDA_LAUNCH_BLOCKING": "1"})
    wrong, count = list[str](), 0
    for stage, offload in ((2, HOST), (2, DISK), (3, BOTH)):
        case = f"{stage}-{'-'.join(offload.values())}"
        place = {"path": str(directory / "spill")} if offload is DISK else {}
        attempts = dict[str, Attempt]()
        for way, (script, env) in ways.items():
            changes = {"zero": {"stage": stage}, "offload": {**offload, **place}}
            tree = same_sums(device, tree_of(device, "fp32", changes))
            if device == "cuda":
                tree["env"] |= env
            run_dir = directory / f"{case}-{way.replace(' ', '-')}"
            attempts[way] = start(run_dir, tree, script=script)
        count += len(attempts)
        wrong += [f"{case}, {each}" for each in _failed(attempts)]
        usual = curve(attempts["as usual"])
        wrong += [
            f"{case}: {way} differs"
            for way, attempt in attempts.items()
            if curve(attempt) != usual or len(usual) != STEPS
        ]
    return Found("; ".join(wrong) or f"{count} runs, all equal", not wrong)


def optimizers(device: str, directory: Path) -> Found:
    """Compare the losses of each optimizer, with its state in host memory, with stage 0 on the
    CPU.
    """
    wrong, words, pairs = list[str](), list[str](), dict[str, tuple[Attempt, Attempt]]()
    for rule in RULES:
        train = {"steps": FEW, "optimizer": rule}
        plain = tree_of("cpu", "fp32", {"zero": {"stage": 0}, "train": train})
        moved = tree_of(device, "fp32", {"zero": {"stage": 2}, "offload": HOST, "train": train})
        pairs[rule] = start(directory / f"{rule}-reference", plain), start(directory / rule, moved)
    for rule, (reference, attempt) in pairs.items():
        if failed := _failed({rule: attempt, f"{rule}, reference": reference}):
            wrong += failed
            continue
        losses = attempt.losses()
        apart = max(distances(reference.losses(), losses))
        words.append(f"{rule} {apart:.1e} apart")
        if apart > RULES[rule] or losses[FEW] >= losses[1]:
            wrong.append(f"{rule}: losses {list(losses.values())}, {apart:.1e} apart")
    return Found("; ".join(wrong or words), not wrong)


def packed(device: str, directory: Path) -> Found:
    """Check that the device packs weights in nf4 to the same bytes as the CPU. Then train
    adapters.
    """
    if (absent := missing("bitsandbytes") or missing("peft")) is not None:
        return absent
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from zerotoolsd.trainer.model.nf4_linear import PACKED, PackedLinear

    torch.manual_seed(0)
    weight, buffers = torch.randn(256, 320), []
    for place in dict.fromkeys(("cpu", device)):
        layer = PackedLinear(torch.nn.Linear(320, 256, device=place), double_quant=True)
        layer.pack_weight(weight.to(place))
        buffers.append({name: value.cpu() for name, value in layer.named_buffers()})
    differing = [
        f"{name}: {int((value != buffers[-1][name]).sum())} of {value.numel()} differ"
        for name, value in buffers[0].items()
        if not _are_same(value, buffers[-1][name], exactly=name == PACKED)
    ]
    model = directory / "model"
    LlamaForCausalLM(LlamaConfig(**{**BASE, "vocab_size": 287})).save_pretrained(model)
    lora = {"rank": 4, "target_modules": ["q_proj", "down_proj"], "frozen_precision": "nf4"}
    changes = {"model": {"path": str(model)}, "lora": lora, "train": {"steps": FEW}}
    attempt = start(directory / "job", tree_of(device, "bf16", changes))
    if attempt.finish() != [0]:
        return Found("; ".join([*differing, last_line(attempt.log())]), False)
    losses = list(attempt.losses().values())
    same = "all bytes equal" if device == "cuda" else "packed on a CPU alone"
    words = "; ".join(differing) or same
    return Found(f"{words}; losses {losses}", not differing and losses[-1] < losses[0])


def _are_same(one: Any, other: Any, *, exactly: bool) -> bool:
    """Return whether two devices have packed the same values.

    Without `exactly`, one scale in a hundred may differ by one. The reason is that the mean, which
    is subtracted before a scale is rounded, is a sum in any order.
    """
    if one.is_floating_point():
        return bool(((one - other).abs() <= TOLERANCE["fp32"] * one.abs()).all())
    apart = (one.int() - other.int()).abs()
    return (
        not apart.any()
        if exactly
        else int(apart.max()) <= 1 and int(apart.sum()) * 100 <= apart.numel()
    )


def resuming(device: str, directory: Path) -> Found:
    """Kill a run with dropout during a background save, verify its checkpoint, and continue it.

    The losses must be the same as the losses of a run that was not killed.
    """
    model = {**DROPOUT, **(LARGE if device == "cuda" else {})}
    changes = {
        "model": {"config": model},
        "zero": {"stage": 2},
        "train": {"steps": LONG[device]},
        "checkpoint": {"every": EVERY, "asynchronous": True, "keep_last": 1},
    }
    tree = same_sums(device, tree_of(device, "fp32", changes))
    whole, killed = (start(directory / name, tree) for name in ("whole", "killed"))
    killed.mailbox.wait_for("checkpoint")
    was_saving = _wait_for_staging(directory / "killed" / "out", killed)
    killed.end()
    again = start(directory / "killed", tree)
    statuses = [*whole.finish(), *again.finish()]
    newest = directory / "killed" / "out" / find_job_checkpoints.directory_name(LONG[device])
    verified = subprocess.run(
        [sys.executable, "-m", "zerotools", "verify", str(newest)], cwd=ROOT, check=False
    )
    wanted, found = whole.losses(), again.losses()
    worst = max((abs(loss - wanted[step]) for step, loss in found.items()), default=math.inf)
    said = f"killed {'in a save' if was_saving else 'in no save'}"
    words = (
        f"{said}, statuses {statuses}, from step {min(found, default=0)} on {worst:.1e} apart, "
        f"verify {verified.returncode}"
    )
    continued = statuses == [0, 0] and worst == 0 and min(found, default=0) > 1
    ok = was_saving and continued and verified.returncode == 0
    return Found(words, ok, [_of_saves(whole, device)])


def _wait_for_staging(out: Path, attempt: Attempt) -> bool:
    """Wait until the attempt begins a save. Return False if it ended before."""
    deadline = Deadline(SAVE_SECONDS)
    while attempt.processes[0].poll() is None and not deadline.has_passed():
        if any(out.glob(f"{find_job_checkpoints.STAGING_PREFIX}*")):
            return True
        time.sleep(0.001)
    return False


def _of_saves(attempt: Attempt, device: str) -> str:
    saves = attempt.events("checkpoint")
    stalls = [each["stall_seconds"] for each in saves]
    size = max(each["bytes"] for each in saves) / 2**20
    most = max(each["rss_bytes"] for each in attempt.events("step")) / 2**20
    buffer = "pinned" if device == "cuda" else "plain"
    print(attempt.log())
    return (
        f"a save of {size:,.0f} MiB stops training for {stalls[0]:.2f} s, and for "
        f"{max(stalls):.2f} s where it waits for the one before; the rank holds {most:,.0f} MiB "
        f"of the host, with a {buffer} copy of the state"
    )


OF_THE_CPU = "losses and every gradient of fp32 on the CPU"
FIRST = ("training in fp32", "training in bf16", "training in fp16", "late copies")
"""The checks that run before the checks of memory."""
CHECKS = {
    "training in fp32": Check(f"{OF_THE_CPU}, 1e-5", 180, trained("fp32"), shared=True),
    "training in bf16": Check(f"{OF_THE_CPU}, 2e-2", 180, trained("bf16"), shared=True),
    "training in fp16": Check(
        f"{OF_THE_CPU}, 2e-2", 180, trained("fp16"), "fp16 is for GPUs", shared=True
    ),
    "late copies": Check("the same losses and norms bit for bit", 120, late_copies, shared=True),
    "optimizers": Check("losses of the CPU", 150, optimizers, shared=True),
    "weights in nf4": Check("the CPU's bytes, and a loss that falls", 60, packed, shared=True),
    "killed and resumed": Check(
        "the losses of a run that was not, bit for bit", 120, resuming, shared=True
    ),
}
