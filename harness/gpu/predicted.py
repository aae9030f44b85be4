"""Checks the predicted memory with one rank of eight, without the other ranks (`fake_rank`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.gpu.checks import GROUPED, TEXT, Check, Found, last_line
from harness.launching import job, start
from zerotools.core.training_memory_layout import MASTERS, MOMENTS, WEIGHTS
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.job_workload import workload_of
from zerotools.jobs.memory_estimates.training_estimate import estimate_job
from zerotools.ops.estimate.rank_memory import Machine
from zerotools.ops.estimate.state_memory import state_of

SCRIPT = Path(__file__).with_name("fake_rank.py")
RANKS = 8
SHARE = 0.1
"""Largest relative difference between the held and the predicted bytes."""
SECONDS = 60.0
MIB = 1 << 20
LARGE = {
    **GROUPED,
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 1024,
}
"""The sizes of a model of about a billion parameters."""
CASES: Mapping[str, Mapping[str, Any]] = {
    "stage 1": {"zero": {"stage": 1}},
    "stage 2": {"zero": {"stage": 2}},
    "stage 3": {"zero": {"stage": 3}},
    "stage 2, optimizer on the host": {"zero": {"stage": 2}, "offload": {"optimizer": "cpu"}},
    "stage 3, parameters on the host": {
        "zero": {"stage": 3},
        "offload": {"optimizer": "cpu", "params": "cpu"},
    },
}


def predicted(device: str, directory: Path) -> Found:
    """Compare the memory of a rank with the estimate: all memory on a GPU, only the state on a
    CPU.
    """
    wrong, memory = list[str](), list[str]()
    for name, changes in CASES.items():
        tree = job_of(device, changes)
        spec = job_from_dict(tree, source="job")
        found = _trained(directory / name.replace(" ", "-"), tree)
        if isinstance(found, str):
            wrong.append(f"{name}: {found}")
            continue
        if found["steps"] != spec.train.steps:
            wrong.append(f"{name}: {found['steps']} of {spec.train.steps} steps were updates")
        lines = _on_gpu(spec, found) if device == "cuda" else _of_state(spec, found)
        for what, (expected, held) in lines.items():
            line = f"{name}, {what}: {expected / MIB:,.2f} MiB predicted, {held / MIB:,.2f} held"
            memory.append(line)
            most = SHARE if device == "cuda" else 0.0
            if abs(held - expected) > most * expected:
                wrong.append(line)
    return Found("; ".join(wrong) or f"{len(memory)} sizes as predicted", not wrong, memory)


def job_of(device: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of all eight ranks. On a GPU, its model has about a billion parameters."""
    large = device == "cuda"
    train = {"steps": 3, "batch_size": RANKS, "precision": "bf16"}
    data = {"text": [str(TEXT)], "sequence_length": 1024 if large else 32}
    model = {"config": LARGE if large else GROUPED}
    tree = job(TEXT, model=model, train=train, data=data, **changes)
    del tree["ranks"]
    return tree | ({"device": "cuda", "gpus": RANKS} if large else {"ranks": RANKS})


def _trained(run_dir: Path, tree: Mapping[str, Any]) -> dict[str, Any] | str:
    """Train the job `tree` in `run_dir`. Return the JSON object that the rank prints, or an error
    message.
    """
    alone = {**tree, "gpus" if tree["device"] == "cuda" else "ranks": 1}
    attempt = start(run_dir, alone, script=SCRIPT)
    if attempt.finish(SECONDS) != [0]:
        print(attempt.log())
        return last_line(attempt.log())
    found: dict[str, Any] = json.loads(attempt.log().splitlines()[-1])
    return found


def _on_gpu(spec: JobSpec, found: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    machine = Machine(RANKS, 1 << 40, 1 << 42)
    row = estimate_job(workload_of(spec), machine, (), ()).asked
    assert row is not None
    terms = row.memory.device
    # A fake group loads no NCCL, and the driver's count began when the context was there. What
    # cuBLAS, cuDNN and loaded kernels hold is not known on its own: it must be within `SHARE`.
    tensors = row.peak_bytes - terms["NCCL"] - terms["CUDA context"]
    return {
        "reserved": (tensors, found["reserved"]),
        "given out by the driver": (tensors, found["given"]),
    }


def _of_state(spec: JobSpec, found: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config
    from zerotoolsd.trainer.model.predict_state_memory import parameters_of

    held = {(tier, use): size for tier, use, size in found["ledger"]}
    meta_model = make_meta_model(read_config(spec.model), spec.lora)
    state = state_of(parameters_of(meta_model), memory_layout_of(spec))
    kept = {key for key in state.keys() | held.keys() if key[1] in (WEIGHTS, MASTERS, MOMENTS)}
    return {
        f"{use} on the {tier}": (state.get((tier, use), 0), held.get((tier, use), 0))
        for tier, use in sorted(kept)
    }


# In a container, the driver tells no process apart: nobody else may allocate meanwhile.
CHECKS = {"predicted memory": Check("within 10 %; the state on a CPU exactly", 240, predicted)}
