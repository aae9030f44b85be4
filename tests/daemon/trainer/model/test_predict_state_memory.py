"""What is predicted of a rank's state is what the rank with most then allocates, to the byte.

These runs are of the full matrix. In each run, tests of what ranks train compare their own
(`check_memory`): every stage and place in both precisions (`test_offload`), gradients that
accumulate and rows that do not divide (`test_train_step`), each optimizer, and adapters.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job
from tests.daemon.trainer.meshes import check_memory
from tests.daemon.trainer.several import run_all
from tests.daemon.trainer.torch_releases import is_before
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import job_from_dict

pytestmark = pytest.mark.torch

# 31 rows of the embedding do not divide by two.
MODEL = {**TINY_LLAMA, "vocab_size": 287, "tie_word_embeddings": True}
PRECISIONS = ("fp32", "bf16")


def jobs(directory: Path) -> dict[str, dict[str, Any]]:
    spill = {"optimizer": "disk", "path": str(directory / "spill")}
    found: dict[str, dict[str, Any]] = {}
    places = ({}, {"optimizer": "cpu"}, spill)
    for stage, offload, precision in product(range(4), places, PRECISIONS):
        train = {"precision": precision, "steps": 1}
        tree = {"train": train, "zero": {"stage": stage}, "offload": offload}
        found[f"{stage}-{precision}-{'-'.join(offload)}"] = tree
    for stage, place in ((1, "none"), (3, "none"), (3, "cpu")):
        half = {"precision": "bf16", "steps": 1, "micro_batch_size": 3, "accumulate": "sharded"}
        tree = {"train": half, "zero": {"stage": stage}, "offload": {"optimizer": place}}
        found[f"{stage}-{place}-accumulated"] = tree
    on_host = {"train": {"steps": 1}, "offload": {"params": "cpu"}}
    adafactor = {"train": {"steps": 1, "optimizer": "adafactor"}}
    found |= {"params": on_host, "params-disk": {**on_host, "offload": {**spill, "params": "cpu"}}}
    eight = {"model": {"config": {**MODEL, "hidden_size": 72}}}
    found["adamw8bit"] = {"train": {"steps": 1, "optimizer": "adamw8bit"}, **eight}
    found["muon"] = {"train": {"steps": 1, "optimizer": "muon"}}
    found |= {"adafactor": adafactor, "sgd": {"train": {"steps": 1, "optimizer": "sgd"}}}
    return {name: {"model": {"config": MODEL}, **tree} for name, tree in found.items()}


def adapted() -> dict[str, dict[str, Any]]:
    """Adapters in each way that there is to keep weights."""
    half = {"precision": "bf16", "steps": 1}
    lora = {"rank": 2, "target_modules": ["q_proj"], "frozen_precision": "train"}
    places: tuple[tuple[int, dict[str, str]], ...] = (
        (1, {}),
        (3, {"optimizer": "cpu"}),
        *(() if is_before("2.9") else ((3, {"params": "cpu"}),)),  # `check_frozen_type` refuses it
    )
    return {
        f"lora-{stage}-{'-'.join(place)}": {
            "model": {"config": MODEL},
            "train": half,
            "zero": {"stage": stage},
            "offload": place,
            "lora": lora,
        }
        for stage, place in places
    }


@pytest.mark.full
@pytest.mark.dear(120, "a run in each place")
def test_every_stage_and_place(text: Path, tmp_path: Path) -> None:
    check(jobs(tmp_path), text, tmp_path)


@pytest.mark.full
@pytest.mark.peft
def test_adapters_beside_frozen_weights(text: Path, tmp_path: Path) -> None:
    check(adapted(), text, tmp_path)


def check(trees: dict[str, dict[str, Any]], text: Path, tmp_path: Path) -> None:
    """What each of the jobs holds at its end is what was predicted."""
    runs = run_all(tmp_path / "run", text, 2, trees, ends=False)
    for name in trees:
        check_memory(runs, name, near=0.0)


def test_what_deepspeed_offloads_is_predicted_on_the_host(text: Path) -> None:
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config
    from zerotoolsd.trainer.model.predict_state_memory import predict_state_memory

    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    tree = {"engine": "deepspeed", "zero": {"stage": 2}, "train": {"precision": "bf16"}}
    config = {"zero_optimization": zero, "bf16": {"enabled": True}}
    spec = job_from_dict(job(text, **tree, deepspeed={"config": config}), source="job")
    meta_model = make_meta_model(read_config(spec.model))
    trained, _ = meta_model.parameter_count()
    found = predict_state_memory(meta_model, memory_layout_of(spec), on_gpu=False)
    assert (found.device, found.host) == (2 * trained, 14 * trained)
