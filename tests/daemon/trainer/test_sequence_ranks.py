"""Ranks that compute one sequence together train as one rank does that has all of it.

Tolerance in fp32: 2e-6 relative per loss over these steps, the order of summation; in bf16 1e-3,
and 1e-4 with Muon, whose products are in bf16.
At one mesh a resumed run is bit-identical to one that was not interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.meshes import check_commands, check_memory
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools import formats
from zerotools.runs import find_job_checkpoints

pytestmark = [pytest.mark.torch, pytest.mark.dear(30, "one start of one rank, one of two")]
MODEL = {**TINY_LLAMA, "hidden_size": 48, "num_attention_heads": 12, "num_key_value_heads": 2}
EXPERTS = {
    **MODEL,
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.1,
}
STAGES = (0, 1, 2, 3)
ASKED = ("begins",) if FULL else ()
TOLERANCE = 2e-6
TOLERANCES = {"bf16": 1e-3, "muon": 1e-4}
MESHES = [(2, 2), (3, 3), (4, 2), (4, 4)] if FULL else [(2, 2)]
"""Ranks, and how many of them compute a sequence: 3 do not divide its 32 tokens, nor 4 the 2
key/value heads; what else differs between them does so in one process, too
(`sequence_parallel/test_sequence_attention`)."""
WAYS: dict[str, dict[str, Any]] = {
    "in-parts": {
        "train": {"micro_batch_size": 2, "activation_checkpointing": True, "chunked_loss": "on"},
        "eval": {"fraction": 0.05, "every": 2, "batch_size": 2},
    },
    "experts": {"model": {"config": EXPERTS}},
}
if FULL:
    WAYS |= {
        "bf16": {"train": {"precision": "bf16"}},
        "eager": {"model": {"config": MODEL, "attention": "eager"}},
        "adapters": {"lora": {"rank": 4, "target_modules": ["q_proj", "o_proj"]}},
        "host": {"offload": {"params": "cpu"}},
        "muon": {"train": {"optimizer": "muon"}},
        "fewer": {"data": {"sequence_length": 5}},
        "elastic": {"ranks": {}},
    }
STAGED = STAGES if FULL else ()
"""That a run over such ranks resumes, moves and is read by commands is in `test_tensor_ranks`, of
ranks that share layers and sequences."""
COMPILED = {"train": {"compile": True}} if FULL else None
"""On two ranks: each compiles, on the same cores."""


def trained(way: dict[str, Any], sequence_ranks: int) -> dict[str, Any]:
    sizes = {"min": sequence_ranks, "max": 2 * sequence_ranks}
    return {
        "model": {"config": MODEL},
        **way,
        **({"ranks": sizes} if "ranks" in way else {}),
        "train": {"steps": 3, **way.get("train", {})},
        "zero": {**way.get("zero", {}), "sequence_ranks": sequence_ranks},
    }


def staged(runs: Path, sequence_ranks: int) -> dict[str, dict[str, Any]]:
    """Three steps at each stage, and a run that goes on from the second of each."""
    jobs: dict[str, dict[str, Any]] = {}
    for stage in STAGED:
        name, zero = f"stage-{stage}", {"zero": {"stage": stage}}
        jobs[name] = trained({**zero, "checkpoint": {"every": 2}}, sequence_ranks)
        source = runs / name / "out" / find_job_checkpoints.directory_name(2)
        jobs[f"resumed-{stage}"] = trained({**zero, "resume_from": str(source)}, sequence_ranks)
    return jobs


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    directory = tmp_path_factory.mktemp("alone")
    jobs = staged(directory / "out", 1) | {name: trained(way, 1) for name, way in WAYS.items()}
    return run_all(directory, text, 1, jobs, ends=False, asked=ASKED)


@pytest.fixture(scope="module", params=MESHES, ids=str)
def several(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    text: Path,
    alone: Runs,
) -> Runs:
    ranks, together = request.param
    directory = tmp_path_factory.mktemp("several")
    jobs = staged(directory / "out", together)
    jobs |= {name: trained(way, together) for name, way in WAYS.items()}
    if ranks == 2 and COMPILED is not None:
        jobs["compiled"] = trained(COMPILED, together)
    for stage in STAGED:
        source = {"resume_from": str(alone.checkpoint(f"stage-{stage}", 2))}
        other = {"zero": {"stage": (stage + 1) % len(STAGES)}}
        jobs[f"moved-{stage}"] = trained({**other, **source}, together)
    return run_all(directory, text, ranks, jobs, ends=False, asked=ASKED)


def test_losses_and_norms_are_those_of_one_rank(alone: Runs, several: Runs) -> None:
    for name in [*WAYS, *(name for name in alone.report if name.startswith("stage"))]:
        near = TOLERANCES.get(name, TOLERANCE)
        assert several.losses(name) == pytest.approx(alone.losses(name), rel=near), name
        norms = pytest.approx(alone.of(name, "grad_norm"), rel=10 * near, abs=1e-4)
        assert several.of(name, "grad_norm") == norms, name


@pytest.mark.full
def test_compiled_blocks_train_alike(alone: Runs, several: Runs) -> None:
    if "compiled" in several.report:
        wanted = pytest.approx(alone.losses("stage-3"), rel=TOLERANCE)
        assert several.losses("compiled") == wanted


@pytest.mark.full
def test_one_rank_goes_on_from_it(several: Runs, tmp_path: Path, text: Path) -> None:
    jobs = {
        f"from-{stage}": trained(
            {
                "zero": {"stage": (stage + 2) % len(STAGES)},
                "resume_from": str(several.checkpoint(f"stage-{stage}", 2)),
            },
            1,
        )
        for stage in STAGES
    }
    runs = run_all(tmp_path / "one", text, 1, jobs, ends=False, asked=ASKED)
    for stage in STAGES:
        assert runs.report[f"from-{stage}"]["begun"] == several.report[f"resumed-{stage}"]["begun"]
        wanted = pytest.approx(several.losses(f"stage-{stage}")[2:], rel=TOLERANCE)
        assert runs.losses(f"from-{stage}") == wanted


def test_evaluation_counts_each_token_once(alone: Runs, several: Runs) -> None:
    wanted, found = (runs.report["in-parts"]["evaluations"] for runs in (alone, several))
    assert found.keys() == wanted.keys()
    for step, each in wanted.items():
        assert found[step]["tokens"] == each["tokens"]
        assert found[step]["loss"] == pytest.approx(each["loss"], rel=TOLERANCE)


@pytest.mark.full
def test_it_goes_on_bit_for_bit(several: Runs) -> None:
    stages = [name.removeprefix("resumed-") for name in several.report if "resumed" in name]
    for stage in stages:
        assert several.losses(f"resumed-{stage}") == several.losses(f"stage-{stage}")[2:]
        assert several.ended(f"resumed-{stage}") == several.ended(f"stage-{stage}")


@pytest.mark.full
def test_it_goes_on_from_other_ranks_and_another_stage(alone: Runs, several: Runs) -> None:
    for name in (name for name in several.report if name.startswith("moved")):
        stage = name.removeprefix("moved-")
        if f"resumed-{stage}" in alone.report:
            assert several.report[name]["begun"] == alone.report[f"resumed-{stage}"]["begun"]
        wanted = pytest.approx(alone.losses(f"stage-{stage}")[2:], rel=TOLERANCE)
        assert several.losses(name) == wanted


@pytest.mark.full
@pytest.mark.parametrize("stage", STAGES)
def test_checkpoints_do_not_know_of_it(
    alone: Runs, several: Runs, tmp_path: Path, stage: int
) -> None:
    path, other = (runs.checkpoint(f"stage-{stage}", 2) for runs in (several, alone))
    assert "over_ranks" not in (path / "config.json").read_text()
    assert formats.read(path).tensors.keys() == formats.read(other).tensors.keys()
    check_commands(path, several.jobs[f"stage-{stage}"]["ranks"], tmp_path)


def test_each_rank_holds_what_was_predicted(several: Runs) -> None:
    for name in several.jobs:
        check_memory(several, name)
