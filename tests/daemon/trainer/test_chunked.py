"""Jobs whose loss is computed in parts have the losses of those that compute it at once.

Tolerance in fp32: 2e-6 relative per loss over these steps, the order of summation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA, job
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile.stored_job import read_stored
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU

pytestmark = [pytest.mark.torch, pytest.mark.dear(30, "every way of training, in parts and whole")]
TOLERANCE, HALF_TOLERANCE = 2e-6, 2e-3
T5 = {"model_type": "t5", "vocab_size": 256, "decoder_start_token_id": 0}
TIED = {"config": {**TINY_GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}}
SOFT = {"config": {**TINY_LLAMA, "model_type": "gemma2", "head_dim": 8, "query_pre_attn_scalar": 8}}
WAYS: dict[str, dict[str, Any]] = {
    "stage-3": {},
    "tied": {"model": TIED},
    "bounded": {"model": SOFT},
    "accumulated": {"train": {"micro_batch_size": 2, "activation_checkpointing": True}},
    "adapters": {"lora": {"rank": 4, "target_modules": ["q_proj", "lm_head"]}},
    "fp16": {
        "env": {FP16_ON_CPU: "1"},
        "train": {"precision": "fp16"},
        "fp16": {"loss_scale": 1024.0},
    },
    "evaluated": {"eval": {"fraction": 0.05, "every": 2, "batch_size": 2}},
}
if FULL:  # how weights are kept makes no difference to who computes with them
    WAYS |= {
        "bf16": {"train": {"precision": "bf16"}},
        "stage-0": {"zero": {"stage": 0}},
        "stage-1": {"zero": {"stage": 1}},
        "stage-2": {"zero": {"stage": 2}},
        "host": {"offload": {"params": "cpu"}},
        "compiled": {"train": {"compile": True}},
    }
OVER_RANKS: tuple[str, ...] = tuple(WAYS) if FULL else ()
"""On two ranks, and the others on one: the ranks exchange the same in all. Without the full matrix
`test_sequence_ranks` has two ranks that compute the loss in parts."""


def with_loss(way: dict[str, Any], chunked: str) -> dict[str, Any]:
    return {**way, "train": {"steps": 3, **way.get("train", {}), "chunked_loss": chunked}}


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, Runs]:
    jobs: dict[int, dict[str, dict[str, Any]]] = {1: {}, 2: {}}
    for name, way in WAYS.items():
        for chunked in ("on", "off"):
            jobs[1 + (name in OVER_RANKS)][f"{name} {chunked}"] = with_loss(way, chunked)
    return {
        ranks: run_all(
            tmp_path_factory.mktemp("chunked"), text, ranks, each, ends=False, asked=("evaluates",)
        )
        for ranks, each in jobs.items()
        if each
    }


@pytest.mark.peft
@pytest.mark.parametrize("name", WAYS)
def test_losses_are_those_of_all_logits_at_once(name: str, by_ranks: dict[int, Runs]) -> None:
    runs = by_ranks[1 + (name in OVER_RANKS)]
    tolerance = HALF_TOLERANCE if name in ("fp16", "bf16") else TOLERANCE
    wanted = runs.losses(f"{name} off")
    assert wanted[2] < wanted[0]
    assert runs.losses(f"{name} on") == pytest.approx(wanted, rel=tolerance)
    norms = pytest.approx(runs.of(f"{name} off", "grad_norm"), rel=20 * tolerance)
    assert runs.of(f"{name} on", "grad_norm") == norms
    if name == "compiled":  # whose blocks are not evaluated before
        return
    evaluated = runs.report[f"{name} off"]["evaluated"]
    assert runs.report[f"{name} on"]["evaluated"] == pytest.approx(evaluated, rel=tolerance)


def test_a_job_that_was_stored_before_computes_it_at_once(text: Path) -> None:
    tree = job(text)
    assert job_from_dict(tree, source="job").train.chunked_loss == "auto"
    spec = read_stored(tree).spec
    assert spec is not None
    assert spec.train.chunked_loss == "off"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {"config": T5}}, "has an encoder and a"),
        ({"engine": "deepspeed", "deepspeed": {"config": {}}}, "at stage 3 all ranks gather"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_it_is_queued(
    changes: dict[str, Any], why: str, text: Path
) -> None:
    from zerotoolsd.trainer.preflight_model_and_data import check_job

    tree = job(text, **changes, train={"chunked_loss": "on"}, zero={"stage": 3})
    with pytest.raises(Unsupported, match=why):
        check_job(read_spec(tree))
    tree["train"]["chunked_loss"] = "auto"
    check_job(read_spec(tree))


def read_spec(tree: dict[str, Any]) -> Any:
    spec = read_stored(tree).spec
    assert spec is not None
    return spec
