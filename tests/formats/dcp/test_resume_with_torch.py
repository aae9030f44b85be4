"""torch goes on from what we lay out: `dcp.load` into FSDP2 and its optimizer, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.golden_files import DEEPSPEED, TORCH
from tests.matrices import FULL
from zerotools import formats
from zerotools.formats.dcp.lay_out_converted import (
    lay_out_dcp as lay_out_training_dcp,
)
from zerotools.formats.torch_optimizers import CLASSES

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Run:
    """A golden checkpoint, and how it is to be laid out. `arguments` are those that decide which
    state the optimizer has; torch's cases have a buffer `seen` in one of their modules."""

    root: Path
    case: str
    style: str
    optimizer: str = "AdamW"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    has_seen: str = "norm"


RUNS = (
    Run(DEEPSPEED, "z2-bf16-w2", "torch"),
    Run(DEEPSPEED, "z3-fp16-w2", "accelerate"),
    Run(DEEPSPEED, "z3-bf16-w2", "torchtitan"),
    Run(DEEPSPEED, "z3-fp32-w2-sub-groups", "accelerate"),
    Run(DEEPSPEED, "z2-bf16-w2-cpu-adam", "torch"),
    Run(DEEPSPEED, "z3-bf16-w3-adapter", "torch"),
    Run(DEEPSPEED, "z2-fp32-w2-adapter", "torchtitan"),
    Run(DEEPSPEED, "z1-fp32-w2-amsgrad", "torchtitan", arguments={"amsgrad": True}),
    Run(DEEPSPEED, "z2-fp32-w2-adam-l2", "accelerate", "Adam"),
    Run(DEEPSPEED, "z1-fp32-w2-momentum", "torch", "SGD", {"momentum": 0.1}),
    Run(
        DEEPSPEED,
        "z2-fp32-w2-rmsprop",
        "torchtitan",
        "RMSprop",
        {"momentum": 0.1, "centered": True},
    ),
    Run(DEEPSPEED, "z3-fp32-w2-adagrad", "torch", "Adagrad"),
    Run(DEEPSPEED, "z3-fp32-w3-straddle", "torch"),
    Run(DEEPSPEED, "z3-bf16-w4-tiny-group", "torchtitan"),
    Run(DEEPSPEED, "z2-fp32-w4-round-robin", "torch"),
    Run(DEEPSPEED, "z3-fp32-w2-frozen-group", "torchtitan"),
    Run(DEEPSPEED, "z3-fp32-w2-frozen-group", "torch"),
    Run(TORCH, "fsdp2-dcp-w3", "torchtitan", model="plain"),
    Run(TORCH, "fsdp2-torchtitan-w2", "accelerate", model="pair"),
    Run(TORCH, "fsdp2-verl-w3", "torch", model="plain"),
    Run(TORCH, "fsdp1-dcp-w3-flat", "torch", model="plain", has_seen="layer"),
)


ACCELERATE_RUNS = (
    Run(DEEPSPEED, "hf-trainer-z3-bf16-w2", "accelerate", model="llama"),
    Run(DEEPSPEED, "accelerate-z3-bf16-w2", "accelerate", model="zoo"),
    Run(TORCH, "fsdp2-torchtitan-w2", "accelerate", model="pair"),
    Run(TORCH, "fsdp2-dcp-w3", "accelerate", model="plain"),
)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_torch_loads_it_and_takes_a_step(tmp_path: Path, ranks: int) -> None:
    """Many cases per launch, as starting torch takes longer than all of them. Every case is taken
    up by one, two or three ranks; in `scripts/judge` each by all three numbers."""
    some = RUNS if FULL else {1: RUNS[3::4], 2: RUNS[::2], 3: RUNS[1::4]}[ranks]
    _resume(some, tmp_path, ranks, {})


def test_accelerate_loads_it_and_takes_a_step(tmp_path: Path) -> None:
    """Of a run with buffers and of one of accelerate; the elements are those of the test above."""
    some = ACCELERATE_RUNS if FULL else ACCELERATE_RUNS[1::2]
    _resume(some, tmp_path, 2, {"loader": "accelerate's own"})


def _resume(runs: Sequence[Run], root: Path, ranks: int, changes: dict[str, Any]) -> None:
    from tests.golden.deepspeed_runs.launch import launch

    cases = [_case(run, root / f"{number}", ranks) | changes for number, run in enumerate(runs)]
    (root / "cases.json").write_text(json.dumps(cases))
    launch("tests.golden.torch_runs.resume", ["cases.json"], ranks, root)


def _case(run: Run, out: Path, ranks: int) -> dict[str, Any]:
    from tests.golden.deepspeed_runs.cases import CASES

    source = formats.read(run.root / run.case / "checkpoint")
    training = formats.training_of(source)
    write(source, lay_out_training_dcp(source, training, out, world_size=ranks, style=run.style))
    return {
        "checkpoint": str(out),
        "truth": str(run.root / run.case / "truth.safetensors"),
        "model": run.model or CASES[run.case].model,
        "loader": run.style,
        "optimizer": run.optimizer,
        "arguments": run.arguments,
        "seen": run.has_seen if run.root == TORCH else None,
        "groups": [
            {
                name: value
                for name, value in group.options.items()
                if name in CLASSES[run.optimizer].defaults
            }
            for group in training.groups
        ],
    }
