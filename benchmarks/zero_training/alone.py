"""Processor time of a step of one rank on the CPU, our loop beside one by hand without FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.zero_training.cases import Case, job, llama
from benchmarks.zero_training.launch import run_ranks
from benchmarks.zero_training.setting import Setting
from benchmarks.zero_training.steps import SCRIPT, TEXT
from harness.launching import resolved

WIDTHS = (32, 64, 128, 256)
LAYERS, SEQUENCES, TOKENS = 4, 2, 64
STEPS, TURNS = 12, 3


def measured(setting: Setting, width: int, look: str) -> Any:
    """Seconds by `look` of each counted step by loop, in turns in one process."""
    model = llama(width, 8 * width // 3, layers=LAYERS, heads=4)
    tree = job(
        Case("torch", 0),
        "cpu",
        1,
        model=model,
        data={"text": [TEXT], "sequence_length": TOKENS},
        train={"steps": STEPS, "batch_size": SEQUENCES, "precision": "fp32"},
    )
    plan = {
        "job": resolved(tree),
        "turns": TURNS,
        "bare": True,
        "deepspeed": None,
        "look": look,
        "plain": True,
    }
    return run_ranks(setting.work / f"alone-{width}-{look}", tree, SCRIPT, plan=plan)


def table(setting: Setting) -> Iterator[str]:
    """The lines of the table, one for each size."""
    yield f"Llamas of {LAYERS} blocks in fp32, {SEQUENCES} sequences of {TOKENS} tokens, one rank"
    yield f"on the CPU: processor time of a step, medians of {TURNS * (STEPS - 2)}; and what of it"
    yield "is outside of forward and backward passes, loss and AdamW."
    yield ""
    yield "| hidden size | ours | bare | ours / bare | outside, ours | outside, bare | difference |"
    yield "|---|---|---|---|---|---|---|"
    for width in WIDTHS:
        cells = [str(width)]
        for look in ("processor", "outside"):
            found = measured(setting, width, look)
            ours, bare = (1e3 * median(found[loop]) for loop in ("ours", "bare"))
            last = f"{ours / bare:.3f}" if look == "processor" else f"{ours - bare:+.2f} ms"
            cells += [f"{ours:.2f} ms", f"{bare:.2f} ms", last]
        yield f"| {' | '.join(cells)} |"
