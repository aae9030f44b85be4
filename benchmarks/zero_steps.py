"""Step times of both engines at every stage, our loop beside the bare one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.trainer.launching import start

SCRIPT = Path(__file__).with_name("zero_step_rank.py")


def llama(width: int, inner: int, *, layers: int, heads: int) -> dict[str, Any]:
    """The config of a small Llama over bytes."""
    return {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 256,
    }


MODEL = llama(384, 1024, layers=4, heads=6)
STEPS, TURNS = 12, 2


@dataclass(frozen=True)
class Case:
    """One row of the table. `offload` is where the optimizer is: none, cpu or disk."""

    engine: str
    stage: int
    offload: str = "none"

    @property
    def name(self) -> str:
        where = "" if self.offload == "none" else f", optimizer on the {self.offload}"
        return f"{self.engine}, stage {self.stage}{where}"

    @property
    def has_bare(self) -> bool:
        """torch itself has neither stage 1 as we have it nor ZeRO-Offload."""
        return self.engine == "deepspeed" or (self.offload == "none" and self.stage != 1)


TORCH = [Case("torch", stage) for stage in (0, 1, 2, 3)]
OFFLOADED = [Case("torch", 2, "cpu"), Case("torch", 3, "cpu"), Case("torch", 2, "disk")]
DEEPSPEED = [Case("deepspeed", stage) for stage in (0, 1, 2, 3)]
CASES = [*TORCH, *OFFLOADED, *DEEPSPEED, Case("deepspeed", 2, "cpu")]


def deepspeed_json(case: Case, per_rank: int) -> dict[str, Any]:
    """The JSON of a case, for the job and for the bare loop alike."""
    zero: dict[str, Any] = {"stage": case.stage}
    if case.offload != "none":
        zero["offload_optimizer"] = {"device": case.offload}
    params = {"lr": 1e-3, "torch_adam": case.offload == "none"}
    return {
        "train_micro_batch_size_per_gpu": per_rank,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": params},
    }


def job(case: Case, device: str, ranks: int, batch: int, text: Sequence[str]) -> dict[str, Any]:
    """The job file of a case."""
    count = {"ranks": ranks} if device == "cpu" else {"gpus": ranks}
    tree: dict[str, Any] = {
        "engine": case.engine,
        "device": device,
        **count,
        "model": {"config": MODEL},
        "data": {"text": list(text), "sequence_length": 128},
        "train": {
            "steps": STEPS,
            "batch_size": batch,
            "precision": "bf16",
            "learning_rate": 1e-3,
            "schedule": "constant",
        },
        "zero": {"stage": case.stage},
    }
    if case.engine == "deepspeed":
        tree["deepspeed"] = {"config": deepspeed_json(case, batch // ranks)}
    elif case.offload != "none":
        tree["offload"] = {"optimizer": case.offload}
    return tree


def measured(case: Case, work: Path, device: str, ranks: int, batch: int) -> dict[str, list[float]]:
    """Seconds of each counted step, by loop."""
    tree = job(case, device, ranks, batch, [str(Path(json.__file__).parent.parent / "*.py")])
    if case.offload == "disk":
        tree["offload"]["path"] = str(work)
    run_dir = work / case.name.replace(", ", "-").replace(" ", "-")
    shutil.rmtree(run_dir, ignore_errors=True)
    home = run_dir / "out"
    home.mkdir(parents=True)
    plan = {
        "job": tree,
        "turns": TURNS,
        "bare": case.has_bare,
        "deepspeed": tree["deepspeed"]["config"] if case.engine == "deepspeed" else None,
    }
    (home / "plan.json").write_text(json.dumps(plan))
    attempt = start(run_dir, {**tree, "ranks": ranks}, script=SCRIPT)
    for process in attempt.processes:
        process.wait()
    if any(attempt.finish()):
        raise RuntimeError(f"{case.name} failed:\n{attempt.log()[-3000:]}")
    found: dict[str, list[float]] = json.loads(attempt.log().splitlines()[-1])
    shutil.rmtree(run_dir)
    return found


def table(work: Path, device: str, ranks: int, batch: int = 8) -> Iterator[str]:
    """The lines of the table: median milliseconds of a step, and ours over the bare loop's."""
    yield f"| engine, {ranks} ranks, {batch} sequences of 128 tokens | ours | bare | ours / bare |"
    yield "|---|---|---|---|"
    for case in CASES:
        print(f"timing {case.name}", file=sys.stderr, flush=True)
        found = measured(case, work, device, ranks, batch)
        mine = median(found["ours"])
        if not found["bare"]:
            yield f"| {case.name} | {1e3 * mine:.0f} ms | | |"
            continue
        other = median(found["bare"])
        row = f"{1e3 * mine:.0f} ms | {1e3 * other:.0f} ms | {mine / other:.3f}"
        yield f"| {case.name} | {row} |"
