"""DeepSpeed trains adapters as engine `torch` does, and they alone; they resume bit for bit, and
are added to their weights at the end.

Tolerance: 2e-6 relative per loss in fp32, the order of summation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.engine_deepspeed.test_deepspeed import (
    TOLERANCE,
    changed,
    config,
    of,
    step,
    tensors,
    weights,
)
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.public import diff
from zerotools.runs import find_job_checkpoints

pytestmark = [
    *(pytest.mark.torch, pytest.mark.deepspeed, pytest.mark.peft),
    pytest.mark.dear(25, "every stage with adapters, resumed"),
]
STAGES = (0, 1, 2, 3) if FULL else (2, 3)
"""Stages 1 and 2 are one optimizer of DeepSpeed's; stage 0 is in `test_deepspeed`."""
RESUMED = [*(f"z{stage}" for stage in STAGES), "z2-bf16"] if FULL else ["z3"]
OFFLOADED = ["z3-cpu"] if FULL else []
RANK, ALPHA = 4, 12.0
TARGETS = ("q_proj", "down_proj")
LORA = {"rank": RANK, "alpha": ALPHA, "target_modules": list(TARGETS)}
TRAIN = {"steps": 3, "learning_rate": 1e-2, "weight_decay": 0.1}
BF16 = {"bf16": {"enabled": True}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY_LLAMA)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path, base: Path) -> Runs:
    """All on two ranks: every stage and a run that goes on from its second step, from a directory
    of weights; stage 3 from a seed; offload; 16 bits."""
    directory = tmp_path_factory.mktemp("adapters")
    common: dict[str, Any] = {"lora": LORA, "model": {"path": str(base)}}
    bf16 = {"tree": config(2, **BF16), "train": {"precision": "bf16"}}
    jobs: dict[str, dict[str, Any]] = {"torch": {"train": TRAIN, **common}}
    jobs["torch-seed"] = {"train": TRAIN, "lora": LORA}
    for stage in STAGES:
        jobs[f"z{stage}"] = of(stage, **common, checkpoint={"every": 2})
    jobs["z3-seed"] = of(3, lora=LORA)
    if FULL:
        jobs["z3-cpu"] = of(3, config(3, offload=("optimizer", "param")), **common)
        jobs["z2-bf16"] = of(2, **bf16, **common)
        jobs["z2-bf16"]["checkpoint"] = {"every": 2}
    for name in RESUMED:
        saved = step(directory / "runs" / "out", name)
        jobs[f"resumed-{name}"] = {**jobs[name], "resume_from": str(saved)}
    ends = ["torch", *(f"z{stage}" for stage in STAGES), *(f"resumed-{n}" for n in RESUMED)]
    return run_all(directory / "runs", text, 2, jobs, ends={*ends, *RESUMED})


@pytest.mark.parametrize("name", [*(f"z{stage}" for stage in STAGES), *OFFLOADED, "z3-seed"])
def test_losses_are_those_of_engine_torch(runs: Runs, name: str) -> None:
    wanted = "torch-seed" if name.endswith("seed") else "torch"
    assert runs.losses(name) == pytest.approx(runs.losses(wanted), rel=TOLERANCE)
    norms = pytest.approx(runs.of(wanted, "grad_norm"), rel=1e-4)
    assert runs.of(name, "grad_norm") == norms


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_runs_go_on_bit_for_bit(runs: Runs, name: str) -> None:
    for what in ("loss", "grad_norm", "learning_rate"):
        assert runs.of(f"resumed-{name}", what) == runs.of(name, what)[2:], what
    ended, again = (tensors(runs.checkpoint(each, 3)) for each in (name, f"resumed-{name}"))
    assert ended.keys() == again.keys()
    assert all(ended[key].tobytes() == again[key].tobytes() for key in ended)


def is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


@pytest.mark.parametrize("stage", STAGES)
def test_the_adapters_alone_are_trained(runs: Runs, base: Path, stage: int) -> None:
    before = load_file(base / "model.safetensors")
    found = tensors(runs.checkpoint(f"z{stage}", 3))
    trained = {name for name, _ in found if is_adapter(name)}
    if stage:  # without ZeRO, DeepSpeed does not name what its optimizer has
        assert trained == {name for name, role in found if role == "exp_avg"}
    held = {n.replace(".base_layer", ""): t for (n, role), t in found.items() if role == "param"}
    for name, value in before.items():
        assert numpy.array_equal(held[name], value), name
    record = find_job_checkpoints.verify_checkpoint_files(runs.checkpoint(f"z{stage}", 3))
    assert record.lora is not None
    assert (record.lora.rank, record.lora.scale) == (RANK, ALPHA / RANK)
    assert {n for group in record.optimizer.groups for n in group.params} == trained


@pytest.mark.parametrize("stage", STAGES)
def test_consolidate_adds_the_adapters_to_the_weights(
    runs: Runs, base: Path, tmp_path: Path, stage: int
) -> None:
    source = runs.checkpoint(f"z{stage}", 3)
    exported = load_file(weights(source, tmp_path / "model") / "model.safetensors")
    before, found = load_file(base / "model.safetensors"), tensors(source)
    assert exported.keys() == before.keys()
    for name, value in exported.items():
        stem, wanted = name.removesuffix(".weight"), before[name]
        if stem.endswith(TARGETS):
            up, down = (found[f"{stem}.lora_{half}.default.weight", "param"] for half in "BA")
            assert not numpy.array_equal(value, wanted)
            wanted = wanted + ALPHA / RANK * (up @ down)
        numpy.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["torch", *(f"z{stage}" for stage in STAGES)])
def test_peft_loads_the_adapter_alone(runs: Runs, base: Path, tmp_path: Path, name: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    source, out = runs.checkpoint(name, 3), tmp_path / "adapter"
    merged = weights(source, tmp_path / "model")
    done = consolidate.prepare_export(source, out, consolidate.Options(adapter_only=True))
    perform_conversion(done, budget=MemoryBudget(), overwrite=False)
    assert diff(merged, base, adapter=out).is_equal
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), out)
    summed, exported = (
        model.merge_and_unload().state_dict(),
        load_file(merged / "model.safetensors"),
    )
    for key, value in exported.items():
        numpy.testing.assert_allclose(summed[key].numpy(), value, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage])
def test_other_ranks_hold_the_same(runs: Runs, tmp_path: Path, stage: int) -> None:
    source = runs.checkpoint(f"z{stage}", 2)
    moved = tensors(changed(source, tmp_path / "moved", 3))
    held = {key: value for key, value in tensors(source).items() if key[1] != "param16"}
    assert all(moved[key].tobytes() == value.tobytes() for key, value in held.items())
    assert (
        find_job_checkpoints.verify_checkpoint_files(tmp_path / "moved").lora
        == find_job_checkpoints.verify_checkpoint_files(source).lora
    )
