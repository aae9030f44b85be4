"""Step times of both engines at every stage, our loop beside the bare one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.zero_training.cases import Case, deepspeed_json, job, llama
from benchmarks.zero_training.launch import Failed, run_ranks
from benchmarks.zero_training.setting import Setting
from benchmarks.zero_training.sizes import Size
from harness.launching import resolved

SCRIPT = Path(__file__).with_name("step_rank.py")
TEXT = str(Path(json.__file__).parent.parent / "*.py")
STEPS = 12
TURNS = {"cpu": 2, "cuda": 1}
"""A CPU drifts more between two turns than a GPU."""
Found = Mapping[str, Any]


@dataclass(frozen=True)
class Workload:
    """What each rank does in a step: `per_rank` sequences of `tokens` tokens."""

    name: str
    model: Mapping[str, Any]
    per_rank: int
    tokens: int


CPU = Workload("Llama of 4 blocks, hidden size 384", llama(384, 1024, layers=4, heads=6), 4, 128)
SIZES = (Size(2048, 24), Size(1536, 16), Size(1024, 12))
SHARE = 0.12
"""Of the memory that is free on a GPU, what 16 bytes per parameter may take. Activations, the
buffers of DeepSpeed, and what a loop leaves for the next turn to free are in the rest. Models of
more than a billion parameters take minutes to draw, and seconds to time."""


def workload(setting: Setting) -> Workload:
    """On a GPU, the largest of `SIZES` that it has room for."""
    if setting.device == "cpu":
        return CPU
    room = SHARE * setting.free_bytes
    size = next((size for size in SIZES if 16 * size.numel <= room), SIZES[-1])
    name = f"Llama of {size}, {size.layers} blocks, hidden size {size.width}"
    return Workload(name, size.config(2048), 4, 2048)


TORCH = [Case("torch", stage) for stage in (0, 1, 2, 3)]
OFFLOADED = [Case("torch", 2, "cpu"), Case("torch", 3, "cpu"), Case("torch", 2, "disk")]
DEEPSPEED = [Case("deepspeed", stage) for stage in (0, 1, 2, 3)]
CASES = [*TORCH, *OFFLOADED, *DEEPSPEED, Case("deepspeed", 2, "cpu")]


def has_bare(case: Case) -> bool:
    """torch itself has neither stage 1 as we have it nor ZeRO-Offload."""
    return case.engine == "deepspeed" or (case.offload == "none" and case.stage != 1)


def tree_of(case: Case, setting: Setting, work: Workload) -> dict[str, Any]:
    """The job file of a case."""
    train: dict[str, Any] = {"steps": STEPS, "batch_size": work.per_rank * setting.ranks}
    if setting.recomputes:
        train["activation_checkpointing"] = True
    return job(
        case,
        setting.device,
        setting.ranks,
        model=work.model,
        data={"text": [TEXT], "sequence_length": work.tokens},
        train=train,
        config=deepspeed_json(case, work.per_rank),
        path=setting.work,
    )


def measured(case: Case, setting: Setting, work: Workload) -> Found:
    """Seconds of each counted step by loop, its tokens, and what makes an MFU of them.

    Raises:
        Failed: a rank did.
    """
    tree = tree_of(case, setting, work)
    config = tree["deepspeed"]["config"] if case.engine == "deepspeed" else None
    plan = {
        "job": resolved(tree),
        "turns": TURNS[setting.device],
        "bare": has_bare(case),
        "deepspeed": config,
        "look": "wall",
        "plain": False,
    }
    run_dir = setting.work / case.name.replace(", ", "-").replace(" ", "-")
    found: Found = run_ranks(run_dir, tree, SCRIPT, plan=plan)
    return found


def rate(found: Found, loop: str) -> float | None:
    """Tokens per second of a loop over all ranks; None if it was not timed."""
    seconds: Sequence[float] = found[loop]
    return found["tokens"] / median(seconds) if seconds else None


def cells(found: Found, loop: str) -> list[str]:
    """Median milliseconds of a step, and tokens per second with their MFU, where it is known."""
    per_second = rate(found, loop)
    if per_second is None:
        return ["", ""]
    speed = f"{per_second:,.0f}"
    if found["peak"] is not None:
        used = per_second * found["peak"]["flops_per_token"] / found["peak"]["peak"]
        speed += f" ({used:.1%})"
    return [f"{1e3 * median(found[loop]):.0f} ms", speed]


def row(case: Case, found: Found) -> str:
    """One row: ours, the bare loop, and ours over the bare one."""
    ratio = f"{median(found['ours']) / median(found['bare']):.3f}" if found["bare"] else ""
    return f"| {' | '.join([case.name, *cells(found, 'ours'), *cells(found, 'bare'), ratio])} |"


def compared(results: Mapping[Case, Found]) -> Iterator[str]:
    """Tokens per second of engine torch beside the others at the same stage and offload, and its
    ratio to the fastest of them."""
    names = ["stage, offload", "engine torch", "engine deepspeed", "bare DeepSpeed", "bare FSDP2"]
    yield f"| {' | '.join([*names, 'engine torch / the fastest other'])} |"
    yield "|" + "---|" * (len(names) + 1)
    for case, found in results.items():
        peer = results.get(Case("deepspeed", case.stage, case.offload))
        if case.engine != "torch":
            continue
        mine = rate(found, "ours")
        by_deepspeed = [rate(peer, loop) if peer else None for loop in ("ours", "bare")]
        others = [*by_deepspeed, rate(found, "bare")]
        known = [each for each in others if each is not None]
        if mine is None or not known:
            continue
        texts = ("" if each is None else f"{each:,.0f}" for each in (mine, *others))
        ratio = f"{mine / max(known):.2f}"
        yield f"| {' | '.join([f'{case.stage}, {case.offload}', *texts, ratio])} |"


def table(setting: Setting) -> Iterator[str]:
    """The lines of the table, and on GPUs of that which compares the engines."""
    work = workload(setting)
    again = ", activation checkpointing" if setting.recomputes else ""
    yield f"{work.name}, {setting.ranks} ranks, {work.per_rank} sequences of {work.tokens} tokens"
    yield f"on each{again}. Tokens per second are over all ranks, with the MFU where it is known."
    yield ""
    yield "| engine | ours | tokens/s | bare | tokens/s | ours / bare |"
    yield "|---|---|---|---|---|---|"
    results: dict[Case, Found] = {}
    for case in (each for each in CASES if setting.has(each.name)):
        print(f"timing {case.name}", file=sys.stderr, flush=True)
        try:
            results[case] = measured(case, setting, work)
            yield row(case, results[case])
        except Failed as error:
            yield f"| {case.name} | not measured: {error} | | | | |"
    if setting.device == "cuda":  # CPUs drift more from launch to launch than the engines differ
        yield ""
        yield from compared(results)
